"""Run the command line with ``python -m swarmnode``."""

from swarmnode.cli.main import main

if __name__ == "__main__":
    main()
