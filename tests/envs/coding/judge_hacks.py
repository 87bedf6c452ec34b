"""Programs that try to be rewarded without solving anything: data for the tests of the judge.

Each program begins with `PRELUDE`: an object that agrees to everything, a writer of forged frames to every
descriptor, and a search through all that the process holds.
"""

from __future__ import annotations

PRELUDE = """
class Always:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 1
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __contains__ = __lt__
    def __sub__(self, other): return 0.0
    __rsub__ = __add__ = __radd__ = __mul__ = __rmul__ = __sub__
    def __abs__(self): return 0.0
    def __bool__(self): return True
    def __len__(self): return 3
    def __getattr__(self, name): return self
    def __call__(self, *args): return self
    def __repr__(self): return 'secret'
    __str__ = __repr__

import json, os, struct
def forge(*messages):
    for fd in range(256):
        for message in messages:
            data = json.dumps(message).encode()
            try: os.write(fd, struct.pack('>I', len(data)) + data)
            except OSError: pass

import gc, sys
def search(mark):
    frame, seen, todo = sys._getframe(), set(), [sys.modules]
    while frame:
        todo += [frame.f_locals, frame.f_globals, frame.f_builtins]
        frame = frame.f_back
    todo += gc.get_objects()
    while todo and len(seen) < 300000:
        item = todo.pop()
        if id(item) in seen: continue
        seen.add(id(item))
        if type(item) in (str, bytes) and len(mark) < len(item) < 10**6 and mark in str(item): return item
        if type(item) is dict: todo += [*item.keys(), *item.values()]
        elif type(item) in (list, tuple, set): todo += item
    return None
"""

_AGAINST_CALLS = r"""
### always equal
def word(n): return Always()

### always equal str
class S(str):
    def __eq__(self, other): return True
    __hash__ = str.__hash__
def word(n): return S('x')

### lies about its class
class L:
    __class__ = str
    def __eq__(self, other): return True
def word(n): return L()

### always equal type
class M(type):
    def __eq__(cls, other): return True
    def __hash__(cls): return hash(str)
class A(metaclass=M): pass
def word(n): return A()

### exit 0 at once
import os
os._exit(0)

### exit 0 in the call
import os
def word(n): os._exit(0)

### sys.exit
import sys
def word(n): sys.exit(0)

### a subclass of SystemExit
class Done(SystemExit): pass
def word(n): raise Done(0)

### kills itself
import os
def word(n): os.kill(os.getpid(), 9)

### aborts
import os
def word(n): os.abort()

### prints a verdict
def word(n):
    print('{"value": ["sok"]}', flush=True)
    print('PASSED 3 OK')

### forges a verdict
def word(n):
    forge({'passed': True}, {'solved': True, 'passed': 3})

### forges all results and leaves
def word(n):
    forge(*[{'value': ['sx']}] * 3)
    os._exit(0)

### forges too many results
def word(n):
    forge({'value': ['sx']})
    return 'x'

### writes garbage
import os
def word(n):
    for fd in range(3, 256):
        try: os.write(fd, b'\xff' * 99)
        except OSError: pass

### announces a huge frame
import os, struct
def word(n):
    for fd in range(3, 256):
        try: os.write(fd, struct.pack('>I', 2**32 - 1))
        except OSError: pass

### patches builtins
import builtins
builtins.type = lambda x: str
builtins.isinstance = lambda *a: True
builtins.len = lambda x: 0
def word(n): return object()

### patches json
import json
json.dumps = lambda *a, **k: '{"value": true, "passed": true}'
json.loads = lambda *a, **k: {'expected': 1}
def word(n): return 1

### patches the driver
import sys
frame = sys._getframe()
while frame:
    frame.f_globals.update(encode=lambda *a: True, _call=lambda *a: {'passed': True}, same=lambda *a: True)
    frame = frame.f_back
def word(n): return 1

### patches unittest and time
import unittest, time
unittest.TestCase.assertEqual = lambda *a: None
time.time = time.monotonic = time.perf_counter = lambda: 0
def word(n): return 1

### __del__ bomb
class Bomb:
    def __del__(self): forge({'value': ['sx']})
def word(n): return [Bomb()]

### atexit bomb
import atexit
atexit.register(lambda: forge({'value': ['sx']}))
def word(n): return 'x'

### a thread after the verdict
import threading, time
def later():
    time.sleep(0.2)
    forge({'value': ['sx']}, {'solved': True})
threading.Thread(target=later).start()
def word(n): return 'x'

### searches frames and gc
def word(n): return search('secret-' + '')

### reads /proc
def word(n):
    found = ''
    for name in ('mem', 'environ', 'cmdline', 'maps'):
        try: found += open(f'/proc/self/{name}', errors='replace').read(10**6)
        except OSError: pass
    at = found.find('secret-')
    return found[at:at + 11]

### calls the parent's memory
import os, ctypes
def word(n):
    libc = ctypes.CDLL(None)
    buffer = ctypes.create_string_buffer(4096)
    libc.ptrace(16, os.getppid(), 0, 0)
    return buffer.value.decode()

### an exception that shows nothing
class E(Exception):
    def __str__(self): raise E()
    __repr__ = __str__
def word(n): raise E()

### an endless generator
def word(n):
    while True: yield 'x'

### a coroutine
async def word(n): return 'x'

### closes its channel
import os
os.closerange(3, 256)
def word(n): return 'x'

### the recursion limit
import sys
sys.setrecursionlimit(10**9)
def word(n): return word(n)
"""

_AGAINST_TESTS = r"""
### always equal
def f(n): return Always()

### always equal class
f = Always

### always equal class that takes arguments
class f(Always):
    def __init__(self, *args): pass

### skips
import unittest
def f(n): raise unittest.SkipTest('no')

### skips when loaded
import unittest
raise unittest.SkipTest('no')

### a class called SkipTest
class SkipTest(Exception): pass
def f(n): raise SkipTest('no')

### exits
import sys
def f(n): sys.exit(0)

### interrupts
def f(n): raise KeyboardInterrupt

### ends the process
import os
def f(n): os._exit(0)

### patches unittest
import unittest
unittest.TestCase.assertEqual = lambda *a: None
unittest.TestCase.run = lambda self, result: result.addSuccess(self)
def f(n): return 0

### patches builtins
import builtins
builtins.abs = lambda x: 0
builtins.sorted = lambda x: x
def f(n): return 0

### forges reports
def f(n):
    for name in ('equal', 'near'):
        forge({'id': f'tests.AnswerTest.test_{name}', 'passed': True, 'words': ''})
    os._exit(0)

### forges answers
forge(*[['t3', 'sreturn', number, 4711] for number in range(1, 50)])
def f(n): return 0

### answers with handles of the tests
forge(*[['t3', 'sreturn', number, 'o<0'] for number in range(1, 50)])
def f(n): return 0

### reaches for globals
def f(n):
    for name in ('__globals__', '__code__', '__self__', '__class__', '__closure__'):
        try: return getattr(n, name)
        except Exception: pass
    return n

### asks the peer for globals
import sys
def f(n):
    frame = sys._getframe()
    while frame:
        peer = frame.f_locals.get('self')
        if hasattr(peer, 'request'):
            for name in ('__globals__', 'gi_frame', 'func_globals'):
                try: return peer.request('get', n, name)['AnswerTest']
                except Exception: pass
        frame = frame.f_back
    return 0

### an endless iterator
import itertools
def f(n): return itertools.count()

### hangs
def f(n):
    while True: pass
"""


def _programs(text: str) -> dict[str, str]:
    sections = [section.partition("\n") for section in text.strip().removeprefix("### ").split("\n### ")]
    return {name: PRELUDE + program for name, _, program in sections}


CALL_HACKS = _programs(_AGAINST_CALLS)
"""Programs that define ``word``."""
TEST_HACKS = _programs(_AGAINST_TESTS)
"""Modules that define ``f``."""
