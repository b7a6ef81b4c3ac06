"""A sink for asyncio, as the peer of omni.sink: sink.py batched|naive PRODUCERS ITEMS prints nanoseconds per item.

batched: producers append under a lock and schedule at most one wakeup per burst; the consumer takes all there is.
naive: every put schedules a wakeup of its own.
"""

import asyncio
import sys
import threading
import time


class Batched:
    def __init__(self, loop):
        self.loop, self.lock, self.items = loop, threading.Lock(), []
        self.scheduled, self.event = False, asyncio.Event()
        self.taken, self.at = [], 0

    def put(self, item):
        with self.lock:
            self.items.append(item)
            if self.scheduled:
                return
            self.scheduled = True
        self.loop.call_soon_threadsafe(self.event.set)

    def drain(self, limit):
        if self.at >= len(self.taken):
            with self.lock:
                self.taken, self.items, self.at = self.items, [], 0
        batch = self.taken[self.at : self.at + limit]
        self.at += limit
        return batch

    async def get_batch(self, limit):
        while True:
            batch = self.drain(limit)
            if batch:
                return batch
            with self.lock:
                self.scheduled = False
                self.event.clear()
            batch = self.drain(limit)
            if batch:
                return batch
            await self.event.wait()


class Naive:
    def __init__(self, loop):
        self.loop, self.queue = loop, asyncio.Queue()

    def put(self, item):
        self.loop.call_soon_threadsafe(self.queue.put_nowait, item)

    async def get_batch(self, limit):
        return [await self.queue.get()]


def produce(sink, items, ready, go):
    ready.release()
    go.wait()
    for item in items:
        sink.put(item)


async def measure(kind, producers, total):
    loop = asyncio.get_running_loop()
    sink = kind(loop)
    ready, go = threading.Semaphore(0), threading.Event()
    share = total // producers
    threads = []
    for p in range(producers):
        items = [f"{p:02d}-{i:029d}" for i in range(share)]
        threads.append(threading.Thread(target=produce, args=(sink, items, ready, go)))
        threads[-1].start()
        ready.acquire()
    start = time.perf_counter_ns()
    go.set()
    seen = 0
    while seen < share * producers:
        seen += len(await sink.get_batch(256))
    elapsed = time.perf_counter_ns() - start
    for thread in threads:
        thread.join()
    assert seen == share * producers
    return elapsed / seen


kinds = {"batched": Batched, "naive": Naive}
print(asyncio.run(measure(kinds[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3]))))
