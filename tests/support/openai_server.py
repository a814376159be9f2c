"""A small HTTP server that speaks the OpenAI protocol as a test tells it to, and makers of what it answers."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 5,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 4},
}


class Server:
    """Answers each call with what `answer(path, body)` returns.

    That is a list of chunks (streamed; a number among them is a pause in seconds, "break" a lost connection), a dict
    (the whole response), or a tuple of an HTTP status and an error message.
    """

    def __init__(self):
        self.calls = []
        self.answer = None
        self.left = threading.Event()  # a client went away in the middle of a stream
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.calls.append((self.path, body))
                answer = outer.answer(self.path, body)
                if isinstance(answer, list):
                    outer.stream(self, answer)
                elif isinstance(answer, tuple):
                    status, message = answer
                    outer.whole(self, status, {"error": {"message": message, "code": None}})
                else:
                    outer.whole(self, 200, answer)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    def whole(self, handler, status, data):
        payload = json.dumps(data).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(payload)))
        if status != 200:
            handler.send_header("Retry-After-Ms", "1")
        handler.end_headers()
        handler.wfile.write(payload)

    def stream(self, handler, chunks):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        try:
            for chunk in chunks:
                if chunk == "break":
                    return
                if isinstance(chunk, float):
                    time.sleep(chunk)
                    continue
                handler.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                handler.wfile.flush()
            handler.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.left.set()

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def chat(*texts, reason="stop", usage=USAGE, **choice):
    choices = [
        {"index": i, "message": {"role": "assistant", "content": t}, "finish_reason": reason, **choice}
        for i, t in enumerate(texts)
    ]
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices, "usage": usage}


def chunk(text=None, index=0, reason=None, **choice):
    choices = [{"index": index, "delta": {"content": text}, "finish_reason": reason, **choice}]
    return {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": choices}


def usage_chunk():
    return {**chunk(), "choices": [], "usage": USAGE}


def text_completion(*texts, reason="stop", logprobs=None):
    choices = [
        {"index": i, "text": t, "finish_reason": reason, "logprobs": logprobs and logprobs[i]}
        for i, t in enumerate(texts)
    ]
    return {"id": "1", "object": "text_completion", "created": 0, "model": "m", "choices": choices, "usage": USAGE}


def echo(prompt, tokens, logprobs, bos=False):
    offsets = [sum(map(len, tokens[:i])) for i in range(len(tokens))]
    assert "".join(tokens).startswith(prompt)
    if bos:
        tokens, logprobs, offsets = ["<s>", *tokens], [None, *logprobs], [0, *[o + 3 for o in offsets]]
    return {"tokens": tokens, "token_logprobs": logprobs, "text_offset": offsets}
