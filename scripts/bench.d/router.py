"""The peer of omni.router: waiters by key, each a queue of one. Prints nanoseconds.

router.py inside CALLS | across CALLS
"""

import queue
import sys
import threading

from measure import now, quantile, result


class Router:
    def __init__(self):
        self.lock, self.waiters, self.late = threading.Lock(), {}, 0

    def register(self, key):
        with self.lock:
            if key in self.waiters:
                raise ValueError(key)
            waiter = self.waiters[key] = queue.Queue(1)
        return waiter

    def unregister(self, key, waiter):
        with self.lock:
            if self.waiters.get(key) is waiter:
                del self.waiters[key]

    def deliver(self, key, value):
        with self.lock:
            waiter = self.waiters.pop(key, None)
            if waiter is None:
                self.late += 1
                return False
        waiter.put_nowait(value)
        return True

    def call(self, key, send, timeout):
        waiter = self.register(key)
        try:
            send()
            value = waiter.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(key) from None
        finally:
            self.unregister(key, waiter)
        if isinstance(value, BaseException):
            raise value
        return value


def inside(calls):
    router = Router()
    start = now()
    for i in range(calls):
        key = ("rpc", i)
        assert router.call(key, lambda: router.deliver(key, i), 1) == i
    return (now() - start) / calls


def across(calls):
    router, requests, took = Router(), queue.SimpleQueue(), []

    def respond():
        while (key := requests.get()) is not None:
            router.deliver(key, key[1])

    def ask():
        for i in range(calls):
            key = ("rpc", i)
            start = now()
            assert router.call(key, lambda: requests.put(key), 5) == i
            took.append(now() - start)

    threads = [threading.Thread(target=respond), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    threads[1].join()
    requests.put(None)
    threads[0].join()
    return quantile(took)


result({"inside": inside, "across": across}[sys.argv[1]](int(sys.argv[2])))
