"""The learner and the trainer, checkpoints, several processes, SFT, self-play and export."""
