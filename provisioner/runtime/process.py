"""Sets up long-running processes: signals that a separate thread handles, and rare garbage collections."""

import gc
import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType

_ALLOCATIONS, _YOUNG, _MIDDLE = 20_000, 10, 20


def collect_garbage_rarely() -> None:
    """Collect reference cycles rarely, and never in objects that exist now, because collections delay decisions."""
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
