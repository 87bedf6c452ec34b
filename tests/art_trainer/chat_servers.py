"""A server that answers chat completions with a word, as a model behind OpenAI's API would."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serving_words(word_for):
    """Serve on loopback; gives the address of the API.

    Args:
        word_for: Takes the last message and the number of the request, from 0; gives what is answered.
    """
    numbers = iter(range(10**9))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            word = word_for(request["messages"][-1]["content"], next(numbers))
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": word}}
            answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
