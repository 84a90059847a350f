"""`python -m tacit` is the command `tacit`."""

from tacit.process_tuning import start_again_if_better


def run() -> None:
    """The command, in a process with settings of its own; nothing slow is imported before."""
    start_again_if_better()
    from tacit.cli import main

    main()


if __name__ == "__main__":
    run()
