"""The log level of commands that print their own output."""
import logging

from mmengine.logging import MMLogger


def silence_logs() -> None:
    """Log errors only."""
    MMLogger.get_current_instance().setLevel(logging.ERROR)
