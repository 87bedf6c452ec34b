"""``python -m art_trainer`` is ``art-trainer``."""

from art_trainer.cli import main

if __name__ == "__main__":
    main()
