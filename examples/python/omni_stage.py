"""Stages of an omnihost pipeline in Python; the standard library is all it needs. README.md describes the protocol.

    def run(self, request, input, emit):  # a thread per request; self is what open returned
        for chunk in input:               # bytes, or what JSON carries; waits. Of a named port: input["audio"]
            emit(chunk)                   # waits for room. To a named port: emit("audio", chunk)

    omni_stage.serve(run, open=lambda config: config, rpc={"add": lambda self, args: args["a"] + args["b"]})
"""

import json
import os
import socket
import struct
import sys
import threading
import time
import traceback
from collections import defaultdict

from omni_shm import IN_CLOSE_WRITE, IN_DELETE, Key, Watch

PROTOCOL, CONTROL, OWNER = 1, 3, 4
ENVELOPE = struct.Struct("<BBI")  # kind of the data, whether it is the last, bytes of metadata
NIL, BYTES, JSON = 0, 1, 3  # kinds
LEVELS, level = ["debug", "info", "warn", "error", "off"], {"now": "info"}


class StageError(Exception):
    """The request was ended from outside, or a chunk could not be stored; the text begins with a code: "EPUT: ..."."""


def log(severity, message, **fields):
    """A line of the host's log."""
    if LEVELS.index(severity) >= LEVELS.index(level["now"]):
        line = json.dumps({"ts": time.time(), "level": severity, "msg": message, **fields}, default=str)
        print(line, file=sys.stderr, flush=True)


class Edge:
    """An edge as init tells of it, and at its writing end what is stored and not consumed."""

    def __init__(self, namespace, spec, port, replica=0):
        self.namespace, self.id, self.port, self.spec, self.others = namespace, spec["id"], port, spec, {}
        self.dir = f'{spec["dir"][:-1]}{replica}' if replica else spec["dir"]  # the reader's
        self.window, self.budget = spec["window"], spec["budget"]
        self.lock, self.stored = threading.Lock(), defaultdict(list)

    def to(self, replica):
        """The same edge to another process of its reader; a request stays with one."""
        if replica and replica not in self.others:
            self.others[replica] = Edge(self.namespace, self.spec, self.port, replica)
        return self.others[replica] if replica else self

    def key_of(self, req, number):
        return Key(self.namespace, self.dir, f"{req}_{self.id}_{number}")

    def room(self, req, size):
        """(may send, None, whether to ask again soon). A request with nothing stored may always send."""
        with self.lock:
            for look in (False, True):
                for one in list(self.stored) if look else ():
                    self.stored[one] = [key for key in self.stored[one] if not key.consumed()]
                full = len(self.stored[req]) >= self.window - self.window // 2  # the reader's memory may hold the rest
                poor = sum(key.size for keys in self.stored.values() for key in keys) + size > self.budget
                if not self.stored[req] or not (full or poor):
                    return True, None, False
            return False, None, not full  # the oldest key tells when a window has room

    def forget(self, req):
        with self.lock:
            for key in self.stored.pop(req, ()):
                if not key.consumed():
                    key.get(discard=True)


def at_port(edges, port, default):
    port = port or (edges[0].port if len({edge.port for edge in edges}) == 1 else default)
    found = [edge for edge in edges if edge.port == port]
    if not found:
        raise KeyError(f'this stage has no port "{port}"')
    return found


class Request:
    """What run is told of its request, and its input: id (the user's label), deadline (as time.monotonic() counts)."""

    def __init__(self, stage, message):
        self.stage, self.key, self.id, self.deadline = stage, message["req"], message["label"], message.get("deadline")
        self.ended, self.finished, self.waits, self.moved = None, False, None, time.monotonic()
        self.lock, self.event = threading.Lock(), threading.Event()
        self.outputs = [edge.to(message.get("to", {}).get(edge.spec["to"])) for edge in stage.outputs]
        self.taken, self.sent = dict.fromkeys(stage.inputs, 0), dict.fromkeys(self.outputs, 0)  # chunks so far
        self.read, self.edges = set(), []  # edges that have had their last chunk; those that are waited for now

    def __iter__(self):
        return self[None]

    def __getitem__(self, port):
        return self.chunks(at_port(self.stage.inputs, port, "input"))

    def chunks(self, edges):
        def attempt():
            soon = False
            for edge, key in keys.items():
                found, envelope, again = key.get()
                if found:
                    return True, (edge, envelope), False
                soon = soon or again
            return False, None, soon

        while keys := {edge: edge.key_of(self.key, self.taken[edge]) for edge in edges if edge not in self.read}:
            edge, envelope = self.wait("input", IN_CLOSE_WRITE, list(keys), keys.values(), attempt)
            kind, finished, skip = ENVELOPE.unpack_from(envelope)
            data = envelope[ENVELOPE.size + skip :]
            self.taken[edge] += 1
            if finished:
                self.read.add(edge)
            if kind != NIL:
                yield json.loads(data) if kind == JSON else data

    def wait(self, what, mask, edges, keys, attempt):
        self.edges, self.waits, over = edges, what, (True, None, False)
        result = self.stage.watch.wait(edges[0].dir, mask, keys, self.event, lambda: over if self.ended else attempt())
        self.waits, self.moved = None, time.monotonic()
        self.check()
        return result

    def check(self):
        if self.ended:
            raise StageError(self.ended)

    def end(self, why):
        with self.lock:  # nothing is stored afterwards
            self.ended = self.ended or why
        self.event.set()

    def send(self, edge, kind, data, finished=False):
        with self.lock:
            self.check()
            key = edge.key_of(self.key, self.sent[edge])
            try:
                key.put(ENVELOPE.pack(kind, finished, 0) + data)
            except OSError as failure:
                raise StageError(f"EPUT: a chunk could not be stored: {failure.strerror}") from failure
            self.sent[edge] += 1
        with edge.lock:
            edge.stored[self.key].append(key)

    def emit(self, *words):
        kind, data = BYTES, words[-1].encode() if isinstance(words[-1], str) else words[-1]
        if not isinstance(data, bytes):
            kind, data = JSON, json.dumps(data, allow_nan=False).encode()
        for edge in at_port(self.outputs, words[0] if len(words) > 1 else None, "output"):
            if not edge.room(self.key, len(data))[0]:
                oldest, attempt = edge.stored[self.key][:1], lambda edge=edge: edge.room(self.key, len(data))
                self.wait("credit", IN_DELETE, [edge], oldest, attempt)
            self.send(edge, kind, data)

    def serve(self):
        try:
            self.stage.run(self.stage.instance, self, self, self.emit)
            self.finished = True
            for edge in self.sent:
                self.send(edge, NIL, b"", True)
            self.stage.send("done", req=self.key)
            for _ in self.chunks(list(self.taken)):  # whoever sends what is not read must not wait for ever
                pass
        except Exception as error:
            self.finished = True
            if not self.ended:
                self.stage.send("failed", req=self.key, traceback=traceback.format_exc(), **told(error))


def told(error):
    """Code and text of an exception, with the place of its innermost frame."""
    if isinstance(error, StageError):
        return {"code": str(error).split(":")[0], "error": str(error)}
    place = traceback.extract_tb(error.__traceback__)[-1]
    file = os.path.basename(place.filename)
    return {"code": "ESTAGE", "error": f"{file}:{place.lineno}: {type(error).__name__}: {error}"}


class Stage:
    def __init__(self, run, open, rpc, close):
        self.run, self.open, self.close, self.requests = run, open, close, {}
        self.rpc = {"stats": self.health, "health": self.health, "log_level": self.log_level, **rpc}
        self.watch, self.lock, self.control = Watch(), threading.Lock(), socket.socket(fileno=CONTROL)
        for fd in (CONTROL, OWNER):
            os.set_inheritable(fd, False)  # programs that the stage starts must not keep them open

    def send(self, type, **fields):
        line = json.dumps({"type": type, **fields}, allow_nan=False).encode() + b"\n"
        with self.lock:
            self.control.sendall(line)

    def serve(self):
        self.send("hello", protocol=PROTOCOL, build="python", pid=os.getpid())
        for line in self.control.makefile("rb"):
            message = json.loads(line)
            getattr(self, "on_" + message["type"], lambda _: None)(message)  # later hosts may say more
        os._exit(1)  # the host is gone

    def on_init(self, message):
        self.inputs = [Edge(message["namespace"], spec, spec["to_port"]) for spec in message["inputs"]]
        self.outputs = [Edge(message["namespace"], spec, spec["from_port"]) for spec in message["outputs"]]
        self.instance = self.open(message.get("config"))
        self.send("ready")

    def on_start(self, message):
        request = self.requests[message["req"]] = Request(self, message)
        threading.Thread(target=request.serve, daemon=True).start()

    def on_abort(self, message):
        request = self.requests.get(message["req"])
        was = "unknown" if not request else "finished" if request.finished else "running"
        if request:
            request.end(message["error"])
        self.send("ended", req=message["req"], was=was)

    def on_forget(self, message):
        if request := self.requests.pop(message["req"], None):
            failed, _ = request.ended, request.end("ECLOSED: the request is over")
            for edge in request.outputs:
                edge.forget(request.key)
            for edge in set(self.inputs) - request.read if failed else ():
                for ahead in range(edge.window + 2):
                    number = request.taken[edge]
                    edge.key_of(request.key, number + ahead).get(discard=True)

    def on_waits(self, message):
        request = self.requests.get(message["req"])
        if request and not request.ended and not request.finished:
            got = [{"edge": edge.id, "n": n, "held": 0, "bytes": 0} for edge, n in request.taken.items()]
            sent = [{"edge": edge.id, "n": n} for edge, n in request.sent.items()]
            why = request.waits  # read once: the request's thread goes on
            waits = [{"on": why, "edge": edge.id} for edge in request.edges if why]
            self.send("waits", req=request.key, inquiry=message["inquiry"], waits=waits, sent=sent, got=got)

    def on_stop(self, message):
        self.close(self.instance)
        os._exit(0)

    def on_rpc(self, message):
        threading.Thread(target=self.answer, args=[message], daemon=True).start()

    def answer(self, message):
        method, answer = self.rpc.get(message["method"]), {}
        try:
            if not method:
                raise StageError(f'ENOENT: there is no method "{message["method"]}" (valid: {", ".join(self.rpc)})')
            self.send("answer", id=message["id"], value=method(self.instance, message.get("args")))
        except Exception as error:
            self.send("answer", id=message["id"], **told(error))

    def health(self, _, args):
        busy = [request for request in list(self.requests.values()) if not request.finished]
        oldest = min(busy, key=lambda request: request.moved, default=None)
        age = time.monotonic() - oldest.moved if oldest else 0
        why = {"waits_for": oldest.waits} if oldest and oldest.waits else {}
        return {"pid": os.getpid(), "running": len(busy), "oldest_seconds": age, **why}

    def log_level(self, _, args):
        before, level["now"] = level["now"], args if args in LEVELS else level["now"]
        return before


def serve(run, open=lambda config: config, rpc=(), close=lambda instance: None):
    """Serves the pipeline until it stops; does not return."""
    Stage(run, open, dict(rpc), close).serve()
