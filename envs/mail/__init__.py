"""Search over a real mailbox."""
