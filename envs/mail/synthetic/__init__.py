"""The generated company: people, topics, threads and their messages."""
