"""KeyboardInterrupt and SystemExit out of workflow code: for the process, or only the code's own mistake?"""

from __future__ import annotations

import signal
import threading


def for_the_process(error: BaseException) -> bool:
    """Whether somebody at the terminal may have meant it.

    Those are heard in the main thread alone, and as an exception only if nobody else looks after the signal, as
    asyncio.run() does and servers do.
    """
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
