"""``python -m art_trainer`` is ``art-trainer``."""

from art_trainer.cli.main import main

if __name__ == "__main__":
    main()
