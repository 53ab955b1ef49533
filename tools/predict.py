"""Run the command of :mod:`mmrla.commands.predict`."""
from mmrla.commands.predict import main

if __name__ == '__main__':
    main()
