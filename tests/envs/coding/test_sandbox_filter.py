"""The filter of system calls, run instruction by instruction as the kernel would."""

import functools
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.envs.coding.sandbox.child import seccomp
from art_gym.envs.coding.sandbox.child.kernel import SystemCallError
from art_gym.envs.coding.sandbox.child.seccomp import Filter, numbers

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PID = 4321
ALLOW, KILL = "allow", "kill"
MACHINES = pytest.mark.parametrize("machine", ARCHITECTURES)
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
# Never, with any arguments; by name, so that a slip in a number is seen.
FORBIDDEN = """
fork vfork execve execveat socket connect bind listen accept sendmsg recvmsg ptrace process_vm_readv mount
umount2 process_vm_writev setns unshare pivot_root chroot setuid setresuid setgroups capset prctl seccomp
bpf keyctl add_key perf_event_open userfaultfd io_uring_setup io_uring_enter memfd_create init_module
kexec_load reboot rt_sigqueueinfo tkill pidfd_open pidfd_getfd pidfd_send_signal shmget shmat msgget semget
mq_open truncate ftruncate unlink unlinkat rename renameat mkdir mkdirat mknod mknodat link symlink chmod
fchmod chown splice tee vmsplice sendfile wait4 waitid setsid setpgid setrlimit sched_setaffinity
personality modify_ldt iopl ioperm timer_create inotify_init1 fanotify_init open_by_handle_at
name_to_handle_at landlock_restrict_self landlock_create_ruleset process_madvise signalfd4
""".split()


Program = list[tuple[int, int, int, int]]


@functools.cache
def programs(machine: str) -> tuple[Program, Program]:
    """The part that all runs share, and that of the process ``PID``."""
    shared, own = Filter(machine).programs(PID)
    return list(struct.iter_unpack("<HBBI", shared)), list(struct.iter_unpack("<HBBI", own))


def result(program: Program, data: bytes) -> int:
    """What a filter returns."""
    accumulator, place = 0, 0
    while True:
        code, if_true, if_false, k = program[place]
        place += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif code == 0x54:
            accumulator &= k
        elif code == 0x15:
            place += if_true if accumulator == k else if_false
        elif code == 0x25:
            place += if_true if accumulator > k else if_false
        elif code == 0x05:
            place += k
        else:
            assert code == 0x06
            return k


def call_data(machine: str, number: int, arguments: tuple[int, ...], arch: int | None = None) -> bytes:
    words = [word & 0xFFFF_FFFF_FFFF_FFFF for word in (*arguments, *[0] * (6 - len(arguments)))]
    return struct.pack("<IIQ6Q", number, ARCHITECTURES[machine] if arch is None else arch, 0, *words)


def verdict(machine: str, number: int, *arguments: int, arch: int | None = None) -> str | int:
    """What the kernel does in a run, which has both parts: allow, kill, or the number of an error.

    Of several filters the strictest counts, and of equally strict ones the last that was installed.
    """
    data = call_data(machine, number, arguments, arch)
    shared, own = (result(program, data) for program in programs(machine))
    # The kernel compares the actions as signed numbers: killing is the least of all.
    strictest = min(own, shared, key=lambda k: (k & 0xFFFF_0000) - ((k & 0x8000_0000) << 1))
    return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(strictest, strictest & 0xFFFF)


def header(machine: str) -> dict[str, int]:
    """Numbers by name from the kernel's header, where it is on this machine."""
    for path in HEADERS[machine]:
        if Path(path).exists():
            text = Path(path).read_text()
            found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", text)
            return {name: int(number) for name, number in found}
    pytest.skip(f"no kernel header for {machine} on this machine")


@MACHINES
def test_numbers_are_the_kernels(machine: str) -> None:
    theirs = header(machine)
    for name, number in numbers(machine).items():
        # The generic header calls some by their 64-bit meaning, in a macro of another name.
        assert theirs.get(name, number) == number, name
    assert len(numbers(machine).keys() & theirs.keys()) > 70
    assert "read" in theirs


@MACHINES
def test_what_is_forbidden_stays_so_with_any_arguments(machine: str) -> None:
    theirs = header(machine)
    for name in FORBIDDEN:
        if name in theirs:
            for argument in (0, 1, PID, 0xFFFF_FFFF_FFFF_FFFF):
                assert verdict(machine, theirs[name], *[argument] * 6) == seccomp.EPERM, name
    assert not numbers(machine).keys() & set(FORBIDDEN)


@MACHINES
def test_another_architecture_is_killed(machine: str) -> None:
    for arch in (0x40000003, 0xC000003E, 0xC00000B7, 0, 0x40000028):
        if arch != ARCHITECTURES[machine]:
            for number in (0, 1, 39, 63, 93, 172, 231):
                assert verdict(machine, number, arch=arch) == KILL


@given(
    number=st.integers(0, 2**32 - 1), arguments=st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6)
)
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_what_is_not_listed_is_refused(machine: str, number: int, arguments: list[int]) -> None:
    if number not in numbers(machine).values():
        assert verdict(machine, number, *arguments) == seccomp.EPERM


@given(st.sampled_from(sorted(numbers("x86_64").values())))
def test_x32_calls_are_refused(number: int) -> None:
    assert verdict("x86_64", number | 0x4000_0000) == seccomp.EPERM


def call(machine: str, name: str, *arguments: int) -> str | int:
    return verdict(machine, numbers(machine)[name], *arguments)


THREAD = 0x3D0F00  # what the GNU C library asks for in pthread_create
ANY = 0xFFFF_FFFF_FFFF_FFFF
HERE, PATH, READ = -100, 0x7FFF_0000, 0o2000000
NEEDED = "read write mmap futex exit_group clock_gettime getrandom".split()
NO_THREADS = (17, 0, 0x4111, 0x01200011, THREAD & ~0x10000, THREAD & ~0x100)
WRITING = (1, 2, 3, 0o100, 0o1000, 0o20200000, 0o101, 0o1101)
COMMANDS = {0: ALLOW, 3: ALLOW, 1030: ALLOW, 8: 1, 10: 1, 15: 1, 1031: 1, 1026: 1}
REQUESTS = {0x5401: ALLOW, 0x5421: ALLOW, 0x5412: 25, 0x8901: 25, 0x540E: 25}
CALLS: list[tuple[str, tuple[int, ...], str | int]] = [
    *((name, (ANY,) * 6, ALLOW) for name in NEEDED),
    *(("clone", (flags,), ALLOW) for flags in (THREAD, THREAD | 0x400000)),
    *(("clone", (flags,), seccomp.EPERM) for flags in NO_THREADS),
    ("clone3", (0, 88), seccomp.ENOSYS),
    ("openat", (HERE, PATH, READ), ALLOW),
    *(("openat", (HERE, PATH, READ | flag), seccomp.EACCES) for flag in WRITING),
    ("openat2", (HERE, 0, 0, 24), seccomp.ENOSYS),
    ("open", (PATH, 0), ALLOW),
    ("open", (PATH, 0o1), seccomp.EACCES),
    *(("fcntl", (1, command), word) for command, word in COMMANDS.items()),
    *(("ioctl", (1, request), word) for request, word in REQUESTS.items()),
    ("socketpair", (1, 1), ALLOW),
    ("socketpair", (2, 1), seccomp.EAFNOSUPPORT),
    ("sendto", (3, 5, 1, 0, 0, 0), ALLOW),
    ("sendto", (3, 5, 1, 0, 0x7FFF_0000_0000, 16), seccomp.EPERM),
    ("prlimit64", (0, 9, 0, 0x7FFF), ALLOW),
    ("prlimit64", (0, 9, 0x7FFF_0000_0000, 0), seccomp.EPERM),
    ("prlimit64", (1, 9, 0, 0x7FFF), seccomp.EPERM),
]


@MACHINES
def test_calls_are_allowed_by_their_arguments(machine: str) -> None:
    for name, arguments, word in CALLS:
        if name != "open" or machine == "x86_64":  # the other has openat alone
            assert call(machine, name, *arguments) == word, (name, arguments)


@given(st.integers(0, 63))
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_no_other_flag_goes_with_a_thread(machine: str, bit: int) -> None:
    expected = ALLOW if (1 << bit) & 0x7D0F00 else seccomp.EPERM
    assert call(machine, "clone", THREAD | 1 << bit) == expected


@given(st.sampled_from([0, -1, 1, -PID, PID + 1]) | st.integers(-(2**31), 2**31 - 1), st.integers(0, 64))
@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize("name", ["kill", "tgkill"])
def test_signals_go_to_itself_only(machine: str, name: str, pid: int, number: int) -> None:
    assert call(machine, name, PID, number) == ALLOW
    assert call(machine, name, pid, number) == (ALLOW if pid == PID else seccomp.EPERM)


MAKING_A_RUN = "wait4 recvmsg pidfd_open pidfd_send_signal setsid prctl landlock_restrict_self".split()


@MACHINES
def test_only_a_zygote_makes_runs(machine: str) -> None:
    """Its part alone allows what the part of a run takes away."""
    shared, _ = programs(machine)
    theirs = header(machine)
    fork = numbers(machine)["clone"], (0x01200011,)
    limit = numbers(machine)["prlimit64"], (0, 9, 0x7FFF_0000_0000, 0)
    for number, arguments in (fork, limit, *((theirs[name], (0,)) for name in MAKING_A_RUN)):
        assert result(shared, call_data(machine, number, arguments)) == 0x7FFF0000
        assert verdict(machine, number, *arguments) == seccomp.EPERM


@MACHINES
def test_a_zygote_makes_no_namespaces_and_sets_no_limits_of_others(machine: str) -> None:
    shared, _ = programs(machine)
    for flags in (0x0200_0000, 0x0002_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000, 0x8000, 1 << 32):
        data = call_data(machine, numbers(machine)["clone"], (0x01200011 | flags,))
        assert result(shared, data) & 0xFFFF == seccomp.EPERM, hex(flags)
    data = call_data(machine, numbers(machine)["prlimit64"], (1, 9, 0x7FFF_0000_0000, 0))
    assert result(shared, data) & 0xFFFF == seccomp.EPERM


def test_other_machines_have_no_filter() -> None:
    assert not seccomp.supported("riscv64")
    with pytest.raises(SystemCallError, match="x86_64, aarch64, not for riscv64"):
        Filter("riscv64")
