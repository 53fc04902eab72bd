// Keeps a page of the console up to date. Without it every page works; it only asks for the page again.
"use strict";

(() => {
  const rate = document.getElementById("rate");
  const problem = document.getElementById("live-problem");
  const KEY = "lakelog.rate";
  const WAIT_MS = 30000; // for an answer
  let timer = 0;
  let isAsking = false;

  const stored = () => {
    try { return localStorage.getItem(KEY); } catch { return null; }
  };

  const store = (value) => {
    try { localStorage.setItem(KEY, value); } catch { /* private windows may refuse */ }
  };

  const say = (words) => {
    if (problem.textContent !== words) problem.textContent = words;
    problem.hidden = words === "";
  };

  // A page that shows a form which was refused, or an answer, would not be the same if it were asked for again.
  const isStill = () => document.querySelector("main[data-still]") !== null;

  // Somebody fills in a form: its fields must not be replaced.
  const isEdited = () => {
    const fields = document.querySelectorAll("main input, main select, main textarea");
    return [...fields].some((field) => {
      if (field.type === "checkbox") return field.checked !== field.defaultChecked;
      if (field.tagName === "SELECT") {
        const first = [...field.options].findIndex((option) => option.defaultSelected);
        return field.selectedIndex !== Math.max(0, first);
      }
      return field.value !== field.defaultValue;
    }) || (document.activeElement?.matches("main input, main select, main textarea") ?? false);
  };

  // The place of an element: its id, or its number among those of its kind.
  const selector = "a, button, input, select, summary, [tabindex]";
  const placeOf = (element) => {
    if (!element || !element.closest("main")) return null;
    if (element.id) return { id: element.id };
    return { number: [...document.querySelectorAll(`main ${selector.split(", ").join(", main ")}`)].indexOf(element) };
  };
  const at = (place) => {
    if (!place) return null;
    if (place.id) return document.getElementById(place.id);
    return document.querySelectorAll(`main ${selector.split(", ").join(", main ")}`)[place.number] ?? null;
  };

  const keyOf = (details, number) => details.id || details.dataset.key || `#${number}`;

  const replace = (fresh) => {
    const main = document.querySelector("main");
    const open = new Map();
    main.querySelectorAll("details").forEach((each, number) => open.set(keyOf(each, number), each.open));
    const scrolls = [...main.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    const place = placeOf(document.activeElement);
    const [x, y] = [window.scrollX, window.scrollY];
    const next = document.adoptNode(fresh.querySelector("main"));
    next.querySelectorAll("details").forEach((each, number) => {
      const was = open.get(keyOf(each, number));
      if (was !== undefined) each.open = was;
    });
    main.replaceWith(next);
    next.querySelectorAll(".scroll").forEach((each, number) => { each.scrollLeft = scrolls[number] ?? 0; });
    at(place)?.focus({ preventScroll: true });
    window.scrollTo(x, y);
    document.title = fresh.title;
  };

  const ask = async () => {
    if (isAsking || isStill() || document.hidden || isEdited() || window.getSelection()?.type === "Range") return;
    isAsking = true;
    try {
      const answer = await fetch(window.location.href, { cache: "no-store", signal: AbortSignal.timeout(WAIT_MS) });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (answer.ok && fresh.querySelector("main")) {
        if (!isEdited()) replace(fresh);
        say("");
      } else {
        const why = fresh.querySelector(".problem")?.textContent.trim() ?? "";
        say(`Status ${answer.status}. ${why} This is the last page that could be read.`);
      }
    } catch {
      say("The console does not answer. This is the last page that could be read.");
    } finally {
      isAsking = false;
    }
  };

  const start = () => {
    window.clearInterval(timer);
    const seconds = Number(rate.value);
    if (seconds > 0) timer = window.setInterval(ask, seconds * 1000);
  };

  const known = stored();
  if (known !== null && [...rate.options].some((option) => option.value === known)) rate.value = known;
  rate.addEventListener("change", () => { store(rate.value); start(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && Number(rate.value) > 0) ask(); });
  document.getElementById("live").hidden = false;
  start();
})();
