"""The peer of omni.chunks: SAVE and RECV threads over shm.py's connector, values pickled, a poll every millisecond.

chunks.py latency CHUNKS SIZE (p50, at 200/s) | burst CHUNKS SIZE (per chunk): nanoseconds | idle REQUESTS: waits
"""

import collections
import os
import pickle
import sys
import threading
import time

from measure import quantile, result
from shm import Connector

PACE = 0.005


class Adapter:
    def __init__(self, namespace, commit=None):
        self.connector, self.on_commit = Connector(namespace), commit
        self.stopped = False
        self.saving, self.receiving = threading.Condition(), threading.Condition()
        self.queue, self.sent, self.cancelled = collections.deque(), {}, set()
        self.tokens, self.expected, self.ready, self.polled = {}, {}, {}, collections.deque()
        self.threads = [threading.Thread(target=run) for run in (self.save, self.receive)]
        for thread in self.threads:
            thread.start()

    def save_async(self, req, value, final):
        with self.saving:
            self.queue.append((req, value, final))
            self.saving.notify()

    def load_async(self, req):
        with self.receiving:
            if req not in self.tokens:
                self.tokens[req], self.expected[req] = object(), 0
                self.polled.append(req)
                self.receiving.notify()

    def poll_ready(self):
        with self.receiving:
            ready, self.ready = self.ready, {}
        return ready

    def stop(self):
        self.stopped = True
        for condition in (self.saving, self.receiving):
            with condition:
                condition.notify_all()
        for thread in self.threads:
            thread.join()

    def save(self):
        while not self.stopped:
            with self.saving:
                if not self.queue:
                    self.saving.wait(0.1)
                    continue
                req, value, final = self.queue.popleft()
                dropped = req in self.cancelled
            if dropped and not final:
                continue
            n = self.sent.get(req, 0)
            chunk = {"data": None if dropped else value, "finished": final}
            self.connector.put(f"{req}_0_{n}", pickle.dumps(chunk, protocol=5))
            self.sent[req] = n + 1

    def commit(self, req, token, chunk):
        """Under the lock: whether the request goes on."""
        if self.tokens.get(req) is not token:
            return False
        self.ready.setdefault(req, []).append(chunk)
        self.expected[req] += 1
        if chunk["finished"]:
            del self.tokens[req], self.expected[req]
        return not chunk["finished"]

    def turn(self):
        progress = False
        for _ in range(len(self.polled)):
            with self.receiving:
                req = self.polled.popleft()
                token, n = self.tokens.get(req), self.expected.get(req)
            if token is None:
                continue
            data = self.connector.get(f"{req}_0_{n}")
            chunk = None if data is None else pickle.loads(data)
            with self.receiving:
                if chunk is None or self.commit(req, token, chunk):
                    self.polled.append(req)
            if chunk is not None:
                progress = True
                if self.on_commit:
                    self.on_commit(chunk)
        return progress

    def receive(self):
        while not self.stopped:
            if self.turn():
                continue
            with self.receiving:
                if not self.polled:
                    self.receiving.wait(0.1)
                    continue
            time.sleep(0.001)


def send(namespace, go, chunks, size, pace):
    adapter, body = Adapter(namespace), b"x" * size
    os.read(go, 1)
    due = time.perf_counter()
    for i in range(chunks):
        if pace:
            due += pace
            time.sleep(max(0, due - time.perf_counter()))
        adapter.save_async("v", (time.monotonic_ns(), body), i == chunks - 1)
    while adapter.sent.get("v") != chunks:
        time.sleep(0.002)
    adapter.stop()
    os._exit(0)


def stream(chunks, size, pace):
    """A sender's process and ours: when each chunk was saved and committed."""
    namespace, (out, go) = f"bp{os.getpid()}", os.pipe()
    if os.fork() == 0:
        send(namespace, out, chunks, size, pace)
    stamps, finished = [], threading.Event()

    def commit(chunk):
        stamps.append((chunk["data"][0], time.monotonic_ns()))
        if chunk["finished"]:
            finished.set()

    adapter = Adapter(namespace, commit)
    adapter.load_async("v")
    os.write(go, b"x")
    seen = 0
    while seen < chunks:
        finished.wait(0.002)
        seen += sum(map(len, adapter.poll_ready().values()))
    adapter.stop()
    os.wait()
    return stamps


def latency(chunks, size):
    result(quantile([committed - saved for saved, committed in stream(chunks, size, PACE)]))


def burst(chunks, size):
    stamps = stream(chunks, size, 0)
    result((stamps[-1][1] - stamps[0][0]) / chunks)


def idle(requests):
    adapter = Adapter(f"bp{os.getpid()}")
    for i in range(requests):
        adapter.load_async(f"idle{i}")
    print("ready", flush=True)
    sys.stdin.read()
    adapter.stop()


{"latency": latency, "burst": burst, "idle": idle}[sys.argv[1]](*map(int, sys.argv[2:]))
