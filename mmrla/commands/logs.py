"""The log level of commands that print their own output."""
from mmengine.logging import MMLogger


def silence_logs() -> None:
    """Log errors only."""
    MMLogger.get_instance('mmrla', logger_name='mmrla', log_level='ERROR')
