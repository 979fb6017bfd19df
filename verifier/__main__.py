"""`python -m verifier` is the command norm-verifier."""

from verifier.command_line import main

if __name__ == "__main__":
    main()
