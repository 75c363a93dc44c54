"""An OpenAI-compatible server that answers by the clock: what a load generator must measure is known beforehand.

Standard library only; loopback only. A request's body may have a member "mock":
    ttft_ms, itl_ms   pauses before the first and between later chunks with text
    tokens            chunks with text (default: max_tokens)
    mode              "" or one of MODES
    vary              true: both pauses are 1 to 4 times that, by the prompt's length in bytes
    metrics           true: events carry FastDeploy's "metrics", where collect_metrics asks for them
    log               "" or a name: GET /mock/log?NAME lists the bodies and times of its requests
"""
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODES = ("crlf", "torn", "cut", "error", "refuse", "crash", "garbage", "empty", "reasoning", "no_usage", "hang",
         "drop")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 0
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def answer(self, status, text, kind="application/json"):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/v1/models":
            return self.answer(200, json.dumps({"object": "list", "data": [{"id": "mock-1"}]}))
        if self.path.startswith("/mock/log"):
            with self.server.lock:
                return self.answer(200, json.dumps(self.server.seen.get(self.path.partition("?")[2], [])))
        return self.answer(404, json.dumps({"error": {"message": "no such page"}}))

    def do_POST(self):
        came = time.monotonic()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path in ("/start_profile", "/stop_profile"):
            with self.server.lock:
                self.server.seen.setdefault("profile", []).append(self.path)
            return self.answer(200, "{}")
        mock = body.get("mock", {})
        self.log = mock.get("log", "")
        entry = {"at": came, "body": body, "authorization": self.headers.get("Authorization"),
                 "headers": dict(self.headers)}
        with self.server.lock:
            self.server.seen.setdefault(self.log, []).append(entry)
            self.server.open[self.log] = self.server.open.get(self.log, 0) + 1
            entry["open"] = self.server.open[self.log]
        try:
            last = self.reply(body, mock)
            self.leave()  # before the client can know that its request is over
            if last:
                self.wfile.write(last)
        except (BrokenPipeError, ConnectionResetError):
            self.leave()
            self.close_connection = True

    def leave(self):
        with self.server.lock:
            self.server.open[self.log] -= 1

    def reply(self, body, mock):
        mode = mock.get("mode", "")
        assert mode == "" or mode in MODES, mode
        if mode == "refuse":
            return self.answer(429, json.dumps({"error": {"message": "the queue is full"}}))
        if mode == "crash":
            return self.answer(500, "Internal Server Error\nline two", "text/plain")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.stream(body, mock, mode)
        if mode == "drop":
            self.close_connection = True
            return None
        return b"0\r\n\r\n"

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, text, mode):
        end = "\r\n" if mode == "crlf" else "\n"
        data = (": a comment%sdata: %s%sid: 7%s%s" % (end, text, end, end, end)).encode()
        if mode == "torn":
            for i in range(0, len(data), 7):
                self.chunk(data[i:i + 7])
        else:
            self.chunk(data)

    def choice(self, body, text, arrival, key="content", finish=None):
        chat = "messages" in body
        choice = {"index": 0, "finish_reason": finish, "arrival_time": arrival}
        if arrival is None:
            del choice["arrival_time"]
        if chat:
            choice["delta"] = {} if text is None else {key: text}
        else:
            choice["text"] = text or ""
        event = {"id": "x", "choices": [choice]}
        if self.metrics:  # of the wall clock, as FastDeploy's are
            at = dict(arrival_time=0, scheduler_recv_req_time=.001, engine_get_req_time=.003, inference_start_time=.006,
                      ask_decode_resource_start_time=.003, ask_decode_resource_finish_time=.005,
                      engine_recv_first_token_time=.010, wait_for_sending_cache_time=.011,
                      send_request_output_to_decode_time=.013, decode_recv_req_time=.002,
                      decode_preallocate_req_time=.004, decode_recv_first_token_time=.014,
                      decode_inference_start_time=.016, decode_recv_second_token_time=.019)
            event["metrics"] = {k: self.zero + v for k, v in at.items()}
            event["metrics"].update(gpu_cache_token_num=64, cpu_cache_token_num=0, cpu_cache_prepare_time=.002)
        return event

    def stream(self, body, mock, mode):
        tokens = mock.get("tokens", body.get("max_tokens", 1))
        ttft, itl = mock.get("ttft_ms", 0), mock.get("itl_ms", 0)
        prompt = body.get("prompt") or body["messages"][-1]["content"]
        if mock.get("vary"):
            ttft, itl = ttft * (1 + len(prompt) % 4), itl * (1 + len(prompt) // 4 % 4)
        self.metrics = mock.get("metrics") and body.get("collect_metrics")
        self.zero = time.time()
        if "messages" in body:  # the role chunk is not the first token
            role = self.choice(body, "", 0)
            role["choices"][0]["delta"]["role"] = "assistant"
            self.event(json.dumps(role), mode)
        if mode == "hang":
            time.sleep(5)
        clock = time.monotonic()
        for i in range(0 if mode == "empty" else tokens):
            clock += (ttft if i == 0 else itl) / 1e3
            time.sleep(max(0, clock - time.monotonic()))
            if i == 1 and mode in ("cut", "drop"):
                return
            if i == 1 and mode == "error":
                self.event(json.dumps({"error": {"message": "out of blocks", "code": 500}}), mode)
                return
            if i == 1 and mode == "garbage":
                self.event('{"choices": [', mode)
                return
            thinks = mode == "reasoning" and i < 2
            # the server's clock is exact: 5 ms late for the first token, then on time
            arrival = (ttft + i * itl + 5) / 1e3
            self.event(json.dumps(self.choice(body, "tök%d " % i, arrival,
                                              "reasoning_content" if thinks else "content")), mode)
        self.event(json.dumps(self.choice(body, None, None, finish="stop")), mode)
        if mode != "no_usage":
            usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": 0 if mode == "empty" else tokens,
                     "prompt_tokens_details": {"cached_tokens": 3}}
            if mode == "reasoning":
                usage["completion_tokens_details"] = {"reasoning_tokens": 2}
            self.event(json.dumps({"id": "x", "choices": [], "usage": usage}), mode)
        self.event("[DONE]", mode)


class Mock(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request, client_address):
        pass  # a client that goes away is part of the tests

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.lock, self.seen, self.open = threading.Lock(), {}, {}
        threading.Thread(target=self.serve_forever, daemon=True).start()


if __name__ == "__main__":
    mock = Mock()
    print(mock.server_address[1], flush=True)
    threading.Event().wait()
