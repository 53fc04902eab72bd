"""`lakelog VERB` when installed, `./spark-submit.sh VERB` from a checkout."""

import sys

from lakelog.jobs.launch.launcher import launch


def main() -> int:
    """Run the verb that the command line names; the status is the process's."""
    return launch(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
