"""Episodes played elsewhere: protocol, task queue, result log, server, workers and Ray actors."""
