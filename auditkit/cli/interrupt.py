"""Ctrl-C and termination: the first signal unwinds the command, the second ends the process at once."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

TERMINATED = 128 + 15  # what a shell reports for SIGTERM
INTERRUPTED = 128 + 2
AGAIN_SECONDS = 0.02


def load_quietly() -> None:
    """Let Ctrl-C end the process without a word while its modules load, where Python would print a traceback.

    To be called before they are imported; what ignores the signal goes on doing so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


class Signals:
    """Handlers for SIGINT and SIGTERM; `code` is the exit code of the signal that came, 0 while none has.

    Files get their final names last and by one rename, so ending at once leaves nothing half-written behind.
    """

    def __init__(self) -> None:
        self.code = 0
        self._unwinds = True
        self._lost = False
        self._told = sys.unraisablehook

    def install(self) -> None:
        """Take over both signals; outside the main thread Python cannot, and nothing is changed."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._handle)
            signal.signal(signal.SIGTERM, self._handle)
            self._told, sys.unraisablehook = sys.unraisablehook, self._unraisable

    def end_at_once(self) -> None:
        """From now on the first signal, too, ends the process: the command is done, and only its result is written."""
        self._unwinds = False

    def leave(self, code: int) -> NoReturn:
        """Exit with `code`; after a signal without the rest of the interpreter's end.

        Python forgets its handlers there, so that a second signal would have its say about the exit code, and remembers
        an interrupt that was caught above an `exec` (every dataclass has one): it would end as killed by SIGINT.
        """
        if self.code:
            atexit._run_exitfuncs()
            os._exit(code)
        sys.exit(code)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._lost:
            self._lost = False
            raise KeyboardInterrupt
        if self.code:
            os._exit(self.code)
        self.code = TERMINATED if number == signal.SIGTERM else INTERRUPTED
        if not self._unwinds:
            os._exit(self.code)
        raise KeyboardInterrupt

    def _unraisable(self, found: UnraisableHookArgs) -> None:
        """Interrupt once more, a moment later, where the exception came up in a finalizer, which cannot pass it on."""
        if not (self.code and issubclass(found.exc_type, KeyboardInterrupt)):
            self._told(found)
            return
        self._lost = True
        again = threading.Timer(AGAIN_SECONDS, _interrupt)
        again.daemon = True
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no threads any more
            again.start()


def _interrupt() -> None:
    """Send SIGINT to the main thread, such that it also wakes up."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()
