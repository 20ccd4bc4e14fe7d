"""Set-up of long-running processes: handling of signals outside the main thread, and garbage collection."""

import gc
import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType

#: Thresholds of Python's garbage collector: numbers of new objects, of young and of middle collections.
_ALLOCATIONS, _YOUNG, _MIDDLE = 20_000, 10, 20


def collect_garbage_rarely() -> None:
    """Collect cycles rarely, and never among objects that exist now, because collections interrupt decisions."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, _YOUNG, _MIDDLE)


def on_end(action: Callable[[str], object]) -> None:
    """Call `action` with the signal's name on SIGTERM and SIGINT, in a separate thread."""
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()

    def handle() -> None:
        while True:
            action(signal.Signals(numbers.get()).name)

    def put(number: int, _frame: FrameType | None) -> None:
        numbers.put(number)

    threading.Thread(target=handle, name="signals", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, put)
