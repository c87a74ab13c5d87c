"""`python -m backstay` is `dw`."""

from backstay.cli.main import main

if __name__ == "__main__":
    main()
