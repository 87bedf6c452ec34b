"""HTTP servers: the OpenAI API, recorded sessions for agents, and the dashboard."""
