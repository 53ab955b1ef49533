"""``python -m mmrla``, the same as the command ``mmrla``."""
from mmrla_cli import main

if __name__ == '__main__':
    main()
