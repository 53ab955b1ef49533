"""Run the command of :mod:`mmrla.commands.summarize_run`."""
from mmrla.commands.summarize_run import main

if __name__ == '__main__':
    main()
