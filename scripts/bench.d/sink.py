"""The peer of omni.sink: producers on threads, one consumer on an asyncio loop. Prints nanoseconds.

sink.py flood batched|naive PRODUCERS ITEMS | pingpong ROUNDS
"""

import asyncio
import collections
import queue
import sys
import threading

from measure import now, quantile, result


class Batched:
    """At most one wakeup between two arms: append, then look at the flag; arm, then drain once more."""

    def __init__(self, loop):
        self.loop, self.event = loop, asyncio.Event()
        self.items, self.lock, self.in_flight = collections.deque(), threading.Lock(), False

    def put(self, item):
        self.items.append(item)
        with self.lock:
            if self.in_flight:
                return
            self.in_flight = True
        self.loop.call_soon_threadsafe(self.event.set)

    def drain(self, limit):
        items = self.items
        if not items:
            return None
        take = items.popleft
        return [take() for _ in range(min(limit, len(items)))]

    async def get_batch(self, limit=256, timeout=None):
        deadline = timeout and self.loop.time() + timeout
        while True:
            batch = self.drain(limit)
            if batch:
                return batch
            self.event.clear()
            with self.lock:
                self.in_flight = False
            batch = self.drain(limit)
            if batch:
                return batch
            if deadline is None:
                await self.event.wait()
                continue
            try:
                await asyncio.wait_for(self.event.wait(), deadline - self.loop.time())
            except asyncio.TimeoutError:
                return self.drain(limit) or []


class Naive(Batched):
    """Each put schedules a wakeup."""

    def put(self, item):
        self.items.append(item)
        self.loop.call_soon_threadsafe(self.event.set)


async def flood(kind, producers, total):
    sink = {"batched": Batched, "naive": Naive}[kind](asyncio.get_running_loop())
    go, share = threading.Event(), total // producers

    def produce(items):
        go.wait()
        put = sink.put
        for item in items:
            put(item)

    items = [[f"{i:08x}{p:08x}{i:08x}{i:08x}" for i in range(share)] for p in range(producers)]
    threads = [threading.Thread(target=produce, args=(mine,)) for mine in items]
    for thread in threads:
        thread.start()
    seen, start = 0, now()
    go.set()
    while seen < share * producers:
        seen += len(await sink.get_batch())
    elapsed = now() - start
    for thread in threads:
        thread.join()
    assert seen == share * producers
    return elapsed / seen


async def pingpong(rounds):
    sink, answers, took = Batched(asyncio.get_running_loop()), queue.SimpleQueue(), []

    def produce():
        for i in range(rounds):
            start = now()
            sink.put(i)
            assert answers.get() == i
            took.append(now() - start)

    thread = threading.Thread(target=produce)
    thread.start()
    seen = 0
    while seen < rounds:
        for item in await sink.get_batch(timeout=2):
            answers.put(item)
            seen += 1
    thread.join()
    return quantile(took)


if sys.argv[1] == "flood":
    result(asyncio.run(flood(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
else:
    result(asyncio.run(pingpong(int(sys.argv[2]))))
