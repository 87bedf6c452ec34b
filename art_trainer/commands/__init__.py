"""The commands of ``art-trainer``, one module each."""
