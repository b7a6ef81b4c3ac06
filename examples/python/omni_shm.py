
import ctypes
import errno
import fcntl
import hashlib
import os
import struct
import threading
import time
from contextlib import suppress

SHM, HEADER = "/dev/shm", struct.Struct("<Q")  # the header is the value's length
IN_CLOSE_WRITE, IN_DELETE, IN_Q_OVERFLOW = 0x8, 0x200, 0x4000
PUT_TIMEOUT = 5.0  # seconds that a held lock may keep a value from being stored
RETRY = 0.00005, 0.005  # seconds to the next look at what no event announces, and how long they grow
POLL = 0.002  # seconds between looks where a folder cannot be watched


class Watch:
    """Wakes the thread that waits for a key when its lock file is closed by the writer, or removed by the reader."""

    def __init__(self):
        self.waiting, self.folders, self.libc = {}, {}, ctypes.CDLL(None)  # file name -> event, folder -> is watched
        self.fd = self.libc.inotify_init1(os.O_CLOEXEC)
        if self.fd >= 0:
            threading.Thread(target=self._read, daemon=True).start()

    def wait(self, folder, mask, keys, event, attempt):
        """Calls attempt() -> (done, result, soon) at once and on each event of a key until it is done. The keys enter
        the table first: either the attempt or an event finds what happened. soon: no event will come, try again."""
        if folder not in self.folders:  # where there can be no watch, keys are polled
            self.folders[folder] = self.libc.inotify_add_watch(self.fd, folder.encode(), mask) >= 0
        self.waiting.update({key.file: event for key in keys})
        try:
            delay = RETRY[0]
            while True:
                event.clear()
                done, result, soon = attempt()
                if done:
                    return result
                delay = min(delay * 4, RETRY[1]) if soon else RETRY[0]
                event.wait(delay if soon else None if self.folders[folder] else POLL)
        finally:
            for key in keys:
                self.waiting.pop(key.file, None)

    def _read(self):
        while True:
            data, at = os.read(self.fd, 65536), 0
            while at < len(data):
                _, mask, _, size = struct.unpack_from("iIII", data, at)
                event = self.waiting.get(data[at + 16 : at + 16 + size].rstrip(b"\0").decode())
                # After an overflow anybody's event may be among those that were lost.
                for one in list(self.waiting.values()) if mask & IN_Q_OVERFLOW else [event] if event else []:
                    one.set()
                at += 16 + size


def unlink(*paths):
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)


def private(path, flags):
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


class Key:
    """One value in shared memory. Whoever can lock it finds no segment or a whole one; whoever unlinks the lock file
    holds its lock and has seen that the path still names it; so nothing is lost when keys are put again."""

    def __init__(self, namespace, folder, key):
        name = f"{namespace}_{hashlib.sha256(key.encode()).hexdigest()[:20]}"
        self.segment, self.file, self.lock = f"{SHM}/{name}", f"{name}.lock", f"{folder}/{name}.lock"

    def _locked(self, flags):
        """A descriptor of the locked file that the path names; False: somebody holds it. Raises where there is none."""
        fd = private(self.lock, flags)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.inode = os.fstat(fd).st_ino
            if self.inode == os.stat(self.lock).st_ino:
                return fd
        os.close(fd)
        return False

    def put(self, data):
        """Stores the value. Raises OSError when that cannot be; then nothing is left of it."""
        deadline = time.monotonic() + PUT_TIMEOUT
        while not (lock := self._locked(os.O_CREAT | os.O_RDWR)):
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "its lock stayed held")
            time.sleep(0.001)
        try:
            unlink(self.segment)
            fd = private(self.segment, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            try:
                at = 0
                while at < len(data):
                    at += os.pwrite(fd, memoryview(data)[at:], HEADER.size + at)
                os.pwrite(fd, HEADER.pack(len(data)), 0)  # last: until then this is no whole value
            finally:
                os.close(fd)
            self.size = len(data)
            fcntl.flock(lock, fcntl.LOCK_UN)  # before the close, which wakes the reader
        except OSError:
            unlink(self.segment, self.lock)
            raise
        finally:
            os.close(lock)

    def consumed(self):
        """Whether what put stored has been taken: its lock file is gone, or another one."""
        with suppress(FileNotFoundError):
            return os.stat(self.lock).st_ino != self.inode
        return True

    def _whole(self):
        """The stored value; None where there is none, or where its writer died over it."""
        with suppress(FileNotFoundError), open(self.segment, "rb", opener=private) as file:
            size, header = os.fstat(file.fileno()).st_size, file.read(HEADER.size)
            if len(header) == HEADER.size and size == HEADER.size + HEADER.unpack(header)[0]:
                return file.read()
        return None

    def get(self, discard=False):
        """(found, data, soon) as Watch.wait takes it. What is found is consumed; discard removes what is not whole."""
        try:
            if not (lock := self._locked(os.O_RDONLY)):
                return False, None, True
        except FileNotFoundError:
            return False, None, False
        try:
            data = self._whole()
            if data is not None or discard:
                unlink(self.segment, self.lock)  # while it is locked
            fcntl.flock(lock, fcntl.LOCK_UN)
            return data is not None, data, True
        finally:
            os.close(lock)
