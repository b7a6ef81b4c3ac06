"""A connector as a reader of the protocol would write it in Python, with nothing but the standard library.

    shm_peer.py NAMESPACE LOCK_DIR put KEY      value from stdin
    shm_peer.py NAMESPACE LOCK_DIR get KEY      value to stdout; exit code 3 when there is none
    shm_peer.py NAMESPACE LOCK_DIR names KEY    segment name and lock path, a line each
    shm_peer.py NAMESPACE LOCK_DIR hold KEY     locks the key, says "held", unlocks at the end of stdin
    shm_peer.py NAMESPACE LOCK_DIR stream N     puts N values under s_0, s_1, ...: "value <i>"
    shm_peer.py NAMESPACE LOCK_DIR serve -      answers lines "get KEY", "put KEY VALUE", "die get KEY N", "die put KEY N":
                                                the value in quotes or None; "done"; for the last two a child that is
                                                killed before its Nth line of code: "died", or "done" when it has fewer
"""

import fcntl
import hashlib
import os
import signal
import struct
import sys
from multiprocessing import resource_tracker, shared_memory


class Connector:
    def __init__(self, namespace, lock_dir):
        self.namespace = namespace
        self.lock_dir = lock_dir

    def shm_name(self, key):
        return f"{self.namespace}_{hashlib.sha256(key.encode()).hexdigest()[:20]}"

    def lock_path(self, key):
        return os.path.join(self.lock_dir, self.shm_name(key) + ".lock")

    def put(self, key, data):
        lock = os.open(self.lock_path(key), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            segment = self._create(self.shm_name(key), 8 + len(data))
            # The reader releases the segment. Left registered, this process's tracker would, when the process ends.
            resource_tracker.unregister(segment._name, "shared_memory")
            segment.buf[8 : 8 + len(data)] = data
            struct.pack_into("<Q", segment.buf, 0, len(data))
            segment.close()
            fcntl.flock(lock, fcntl.LOCK_UN)
        finally:
            os.close(lock)

    @staticmethod
    def _create(name, size):
        try:
            return shared_memory.SharedMemory(name=name, create=True, size=size)
        except FileExistsError:
            # Unlinked by name: one whose writer died early is empty, and cannot be mapped.
            os.unlink("/dev/shm/" + name)
            return shared_memory.SharedMemory(name=name, create=True, size=size)

    def get(self, key):
        try:
            lock = os.open(self.lock_path(key), os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            segment = shared_memory.SharedMemory(name=self.shm_name(key))
            (length,) = struct.unpack_from("<Q", segment.buf, 0)
            data = bytes(segment.buf[8 : 8 + length])
            segment.close()
            segment.unlink()
            os.unlink(self.lock_path(key))
            return data
        except (BlockingIOError, FileNotFoundError):
            return None
        except ValueError:  # empty: its writer died before it wrote
            return None
        finally:
            os.close(lock)

    def hold(self, key):
        lock = os.open(self.lock_path(key), os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        print("held", flush=True)
        sys.stdin.buffer.read()
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def die_at(n):
    """Kills this process before the nth line that the connector executes from now on."""
    left = [n]

    def trace(frame, event, _):
        if frame.f_code.co_filename != __file__:
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def in_child(n, operate):
    """True when the child was killed. Returns when its tracker, which inherits the pipe, has ended as well."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 2)
        os.close(writer)
        die_at(n)
        operate()
        sys.settrace(None)
        os._exit(0)
    os.close(writer)
    while os.read(reader, 4096):
        pass
    os.close(reader)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def serve(connector):
    for line in sys.stdin:
        words = line.split()
        if words[0] == "get":
            answer = connector.get(words[1])
            print(None if answer is None else '"%s"' % answer.decode(), flush=True)
        elif words[0] == "put":
            connector.put(words[1], words[2].encode())
            print("done", flush=True)
        elif words[1] == "get":
            print("died" if in_child(int(words[3]), lambda: connector.get(words[2])) else "done", flush=True)
        else:
            print("died" if in_child(int(words[3]), lambda: connector.put(words[2], b"dying")) else "done", flush=True)


def main(namespace, lock_dir, verb, argument):
    connector = Connector(namespace, lock_dir)
    if verb == "put":
        connector.put(argument, sys.stdin.buffer.read())
    elif verb == "get":
        data = connector.get(argument)
        if data is None:
            return 3
        sys.stdout.buffer.write(data)
    elif verb == "names":
        print(connector.shm_name(argument), connector.lock_path(argument), sep="\n")
    elif verb == "hold":
        connector.hold(argument)
    elif verb == "serve":
        serve(connector)
    elif verb == "stream":
        for i in range(int(argument)):
            connector.put(f"s_{i}", b"value %d" % i)
    return 0


sys.exit(main(*sys.argv[1:]))
