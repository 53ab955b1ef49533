"""Run the command of :mod:`mmrla.commands.paper_tables`."""
from mmrla.commands.paper_tables import main

if __name__ == '__main__':
    main()
