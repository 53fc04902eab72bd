"""`lakelog VERB` when installed, `./spark-submit.sh VERB` from a checkout."""

import sys

from lakelog.jobs.launch import entry


def main() -> int:
    """Run the verb that the command line names; the status is the process's."""
    entry.begin()
    sys.meta_path.insert(0, entry.WithoutPandas())
    from lakelog.jobs.launch.launcher import launch  # the first import that takes its time

    return launch(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
