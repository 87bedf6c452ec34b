"""Importing real mailboxes: mbox, Maildir, .eml and JSON lines."""
