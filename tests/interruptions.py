"""Interrupts a call where Python carries out the handlers of signals: as a function begins, and after one of C."""

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType, ModuleType


class Interruption:
    """Raises KeyboardInterrupt at one of these points, by its number: in the modules, and in the functions of
    `threading` that they call. `where`: the function and the line of the point."""

    def __init__(self, point: int, modules: Iterable[ModuleType]) -> None:
        self.where = ""
        self._left = point
        self._files = {module.__file__ for module in modules}

    def during(self, call: Callable[[], object]) -> bool:
        """Makes a call. Returns whether it has come to the point."""
        before = sys.getprofile()
        sys.setprofile(self._profile)
        try:
            with suppress(KeyboardInterrupt):
                call()
        finally:
            sys.setprofile(before)
        return bool(self.where)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "c_return") or not self._is_ours(frame):
            return
        if not self._left:
            sys.setprofile(None)
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno} {event}"
            raise KeyboardInterrupt
        self._left -= 1

    def _is_ours(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        caller = frame.f_back.f_code.co_filename if frame.f_back else ""
        return file in self._files or (file == threading.__file__ and caller in self._files)
