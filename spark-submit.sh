#!/usr/bin/env bash
# The way in from a checkout:   ./spark-submit.sh VERB [arguments of the verb and of spark-submit]
#                               ./spark-submit.sh pytest [arguments]
# The first use makes .venv beside this file: Python packages at the versions of pyproject.toml, and Delta's jars.
# Later uses find its stamp and start at once. PYTHON=/path/to/python3 chooses another interpreter for it.
set -euo pipefail

home="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd -P)"
venv="$home/.venv"
python="$venv/bin/python"

say() { printf 'lakelog: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# --- what must be on the machine: python3 with venv, Java 17 or 21 ---

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

changes_what_is_there() { # PACKAGE: apt-get prints the installed version in brackets where it would replace it
    apt-get install -s --no-install-recommends "$1" 2>/dev/null | grep -Eq '^(Inst [^ ]+ \[|Remv )'
}

install() { # PACKAGE: running programs may use what is installed, so none of it is replaced
    apt-get update -qq >&2 || return 1
    if changes_what_is_there "$1"; then
        say "apt-get would upgrade or remove installed packages for it, which breaks programs that use them"
        return 1
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-upgrade --no-install-recommends "$1" >&2
}

need() { # WHAT IS NEEDED, PACKAGE
    can_install || die "needs $1, and there is none; on Debian and Ubuntu: sudo apt-get install $2"
    say "needs $1, and there is none: installing $2 with apt-get, without any upgrade of what is installed"
    install "$2" || die "needs $1, and did not install it; when nothing else runs: sudo apt-get install $2"
}

base_python() {
    local base="${PYTHON:-python3}"
    command -v "$base" >/dev/null || need "Python 3.11 or newer" python3
    "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "needs Python 3.11 or newer, but $base is $("$base" -V 2>&1); name another with PYTHON=/path/to/python3"
    # Debian ships python3 without these two.
    "$base" -c 'import ensurepip, venv' 2>/dev/null || need "Python's venv module" python3-venv
    command -v "$base"
}

# Any Java counts, also one that is too old or does not start: the verb prints what is wrong with it.
is_java_there() {
    [ -n "${JAVA_HOME:-}" ] || command -v java >/dev/null || compgen -G '/usr/lib/jvm/*/bin/java' >/dev/null
}

need_java() { is_java_there || need "Java 17 or 21" openjdk-17-jre-headless; }

starts_spark() { # ARGUMENTS
    [ "${1:-}" = pytest ] || "$python" -c 'if True:
        import sys
        from lakelog.jobs.launch.launcher import starts_spark
        sys.exit(not starts_spark(sys.argv[1:]))' "$@"
}

# --- the environment ---

# The place belongs to the stamp: a virtual environment that was copied or moved points to where it was made.
stamp() { printf '%s %s\n' "$(cksum <"$home/pyproject.toml")" "$home"; }

is_ready() { [ -x "$python" ] && [ "$(cat "$venv/stamp" 2>/dev/null)" = "$(stamp)" ]; }

step() { # WHAT, COMMAND...: its output is shown only if it fails
    say "$1"
    shift
    "$@" >"$venv/setup.log" 2>&1 </dev/null || {
        tail -n 30 "$venv/setup.log" >&2
        die "failed; the whole output is in $venv/setup.log"
    }
}

make_environment() {
    local base started=$SECONDS
    base="$(base_python)"
    need_java # Spark fetches Delta's jars
    say "first use: making $venv, once"
    rm -rf "$venv" # whatever is there was made for other versions, or only by half
    mkdir "$venv"
    step "1/3 virtual environment" "$base" -m venv "$venv"
    step "2/3 Python packages (PySpark is 450 MB, this takes a few minutes)" \
        "$python" -m pip install --disable-pip-version-check --no-input -e "$home[spark,demo,ui,test]"
    step "3/3 Delta's jars" "$python" -m lakelog.jobs.launch.delta_jars "$venv/jars"
    stamp >"$venv/stamp" # last: without it the next use starts again
    say "ready after $((SECONDS - started)) s"
}

set_up() { # one process makes it, the others that start meanwhile wait for it
    exec 9>"$home/.venv.lock"
    if command -v flock >/dev/null && ! flock -n 9; then
        say "waiting for the set-up that another process has begun"
        flock 9
    fi
    is_ready || make_environment
    exec 9>&-
}

# The environment has the PySpark that it was made for: a Spark elsewhere on this machine is another version.
unset SPARK_HOME
export PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1 # a folder named "lakelog" where the user happens to stand is not ours

is_ready || set_up
if ! is_java_there && starts_spark "$@"; then need_java; fi

if [ "${1:-}" = pytest ]; then
    # Tests start hundreds of processes. Where Python writes no bytecode, as in many containers, each compiles all sources.
    unset PYTHONDONTWRITEBYTECODE
    cd -- "$home"
    exec "$python" -m "$@"
fi
# Commands that the verb prints begin with this name.
LAKELOG_PROGRAM="$0" exec "$python" -m lakelog.jobs "$@"
