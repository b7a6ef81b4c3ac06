"""The peer of omni.shm: multiprocessing.shared_memory, flock and a length of 8 bytes. Prints nanoseconds.

shm.py inside SIZE PAIRS | across SIZE PAIRS | absent GETS
"""

import fcntl
import hashlib
import mmap
import os
import struct
import sys
from multiprocessing import resource_tracker, shared_memory

from measure import now, result

LENGTH = struct.Struct("<Q")
DIR = "/dev/shm"


class Connector:
    def __init__(self, namespace):
        self.namespace, self.written = namespace, set()

    def name(self, key):
        return f"{self.namespace}_{hashlib.sha256(key.encode()).hexdigest()[:20]}"

    def create(self, name, size):
        try:
            return shared_memory.SharedMemory(name, create=True, size=size)
        except FileExistsError:
            stale = shared_memory.SharedMemory(name)
            stale.close()
            stale.unlink()
            return shared_memory.SharedMemory(name, create=True, size=size)

    def put(self, key, data):
        name = self.name(key)
        lock = os.open(f"{DIR}/{name}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            segment = self.create(name, LENGTH.size + len(data))
            # The reader owns it from now on: our tracker must not remove it when we end.
            resource_tracker.unregister(segment._name, "shared_memory")
            LENGTH.pack_into(segment.buf, 0, len(data))
            segment.buf[LENGTH.size : LENGTH.size + len(data)] = data
            segment.close()
            self.written.add(key)
            fcntl.flock(lock, fcntl.LOCK_UN)
        finally:
            os.close(lock)

    def get(self, key):
        name = self.name(key)
        path = f"{DIR}/{name}.lock"
        try:
            lock = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            segment = shared_memory.SharedMemory(name)
            (size,) = LENGTH.unpack_from(segment.buf, 0)
            data = bytes(segment.buf[LENGTH.size : LENGTH.size + size])
            segment.close()
            segment.unlink()
            os.unlink(path)
            return data
        except (BlockingIOError, FileNotFoundError, ValueError):
            return None
        finally:
            os.close(lock)


def payload(size):
    return os.urandom(4096) * (size // 4096) + os.urandom(size % 4096)


def inside(size, pairs):
    connector, data = Connector("bp"), payload(size)
    for i in range(pairs + 1):
        key = f"inside{os.getpid()}_0_{i}"
        connector.put(key, data)
        assert len(connector.get(key)) == size
        if i == 0:  # everything has run once
            start = now()
    return (now() - start) / pairs


def across(size, pairs):
    """A writer at most 8 ahead, and a reader that polls."""
    taken, data, base = mmap.mmap(-1, 4096), payload(size), f"across{os.getpid()}_0_"
    resource_tracker.ensure_running()
    if os.fork() == 0:
        connector = Connector("bp")
        for i in range(pairs + 1):
            while i - LENGTH.unpack_from(taken, 0)[0] >= 8:
                pass
            connector.put(f"{base}{i}", data)
        os._exit(0)
    connector = Connector("bp")
    for i in range(pairs + 1):
        while (got := connector.get(f"{base}{i}")) is None:
            pass
        assert len(got) == size
        LENGTH.pack_into(taken, 0, i + 1)
        if i == 0:
            start = now()
    elapsed = now() - start
    os.wait()
    return elapsed / pairs


def absent(gets):
    connector = Connector("bp")
    connector.get("never put")
    start = now()
    for _ in range(gets):
        connector.get("never put")
    return (now() - start) / gets


if __name__ == "__main__":
    sides = {"inside": inside, "across": across, "absent": absent}
    result(sides[sys.argv[1]](*map(int, sys.argv[2:])))
