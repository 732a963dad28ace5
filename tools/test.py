#!/usr/bin/python3
"""tools/test.py quick|all|nightly [STEP ...] -- run the steps of a table in two lanes, and sum up their tests.

A lane takes the step that keeps the run longest of those that wait for no other; all run, whatever fails. A step's output is
build/logs/STEP.log, shown when it fails. A step counts the tests that its log reports (lines of cmocka, and closing lines
"N passed, N failed"); one that reports none counts as one test. With names of steps, only those run and what they need.

A step that takes more CPU time than its budget fails: make it cheaper, or say in the commit why it may take more.
Budgets are about twice what a step takes, so that a noisy machine stays below them; TEST_BUDGET=2 doubles them on a slower one.

Random graphs, and which share of the cases the slow devices run, follow a seed of the commit; TEST_SEED repeats another
run's. Steps see it as $TEST_SEED. In nightly runs it is the day's, and devices run all cases.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

LANES = 2
PYTHON = "/usr/bin/python3"  # Debian's, which has NumPy

# Each row: name, budget in seconds of CPU time, the steps that must have ended, command. The first step of a run has all
# CPUs for itself.
QUICK = """
build            200 -            tools/build.sh release
unit-1           100 -            ctest --test-dir build --no-tests=error -V -I 1,,3 -LE "slow-[^$((TEST_SEED % 10))]"
unit-2           100 -            ctest --test-dir build --no-tests=error -V -I 2,,3 -LE "slow-[^$((TEST_SEED % 10))]"
unit-3           100 -            ctest --test-dir build --no-tests=error -V -I 3,,3 -LE "slow-[^$((TEST_SEED % 10))]"
value             20 -            build/querntest --mode value
grad              20 -            build/querntest --mode grad
value-interp      20 -            build/querntest --mode value --device interp
grad-interp       20 -            build/querntest --mode grad --device interp
bits-interp       40 -            build/querntest --mode bits --device interp
value-calls       20 -            build/querntest --mode value --device interp --target sm_90+blas+dnn
"""

# Every case runs on every device, optimized and not, but for slow ones, which run a share of them. Programs that are compiled share a cache, which is empty at first, so that
# each kernel is compiled once.
ALL = """
build            200 -            tools/build.sh release
runner-self       20 -            $python tools/test.py --selftest
layers-self       20 -            tools/check_layers.sh --selftest
layers            20 -            tools/check_layers.sh
api-self          20 -            $python tools/api.py --selftest
api               20 -            $python tools/api.py
abi              120 -            tests/abi/run.sh
order-self        20 -            tools/check_order.sh --selftest
order             40 -            tools/check_order.sh
headers-self      20 -            tools/check_headers.sh --selftest
headers           30 -            tools/check_headers.sh
words-self        20 -            tools/check_words.sh --selftest
words             60 -            tools/check_words.sh
mutate-self       20 -            $python tools/mutate.py --selftest
docs-self         20 -            $python tools/docs.py --selftest
accuracy-self     20 -            $python tools/accuracy.py --selftest
unit-1           450 -            ctest --test-dir build --no-tests=error -V -I 1,,2
unit-2           450 -            ctest --test-dir build --no-tests=error -V -I 2,,2
value             20 -            build/querntest --mode value
grad              20 -            build/querntest --mode grad
grad2             30 -            build/querntest --mode grad2
jvp               30 -            build/querntest --mode jvp
bits              30 -            build/querntest --mode bits
ulp               80 -            $python tools/accuracy.py
coverage          30 -            build/querntest --mode coverage
value-interp      20 -            build/querntest --mode value --device interp
value-interp-0    20 -            build/querntest --mode value --device interp --optimize 0
grad-interp       20 -            build/querntest --mode grad --device interp
grad-interp-0     20 -            build/querntest --mode grad --device interp --optimize 0
bits-interp       40 -            build/querntest --mode bits --device interp
value-calls       20 -            build/querntest --mode value --device interp --target sm_90+blas+dnn
value-calls-0     20 -            build/querntest --mode value --device interp --target sm_90+blas+dnn --optimize 0
grad-calls        20 -            build/querntest --mode grad --device interp --target sm_90+blas+dnn
value-mma         20 -            build/querntest --mode value --device interp --target sm_90+mma --op attention
value-mma-mask    20 -            build/querntest --mode value --device interp --target sm_90+mma --op attention_mask
grad-mma          20 -            build/querntest --mode grad --device interp --target sm_90+mma --op attention
grad-mma-mask     20 -            build/querntest --mode grad --device interp --target sm_90+mma --op attention_mask
value-cpu        120 -            build/querntest --mode value --device cpu
value-cpu-0       80 -            build/querntest --mode value --device cpu --optimize 0
grad-cpu         120 -            build/querntest --mode grad --device cpu
grad-cpu-0        40 -            build/querntest --mode grad --device cpu --optimize 0
bits-cpu         320 value-cpu    build/querntest --mode bits --device cpu
memory-cpu        30 bits-cpu     build/querntest --mode memory --device cpu
memory-large     100 -            build/quernbytes
ref-cpu           30 value-cpu    QUERN_REF=1 build/querntest --mode value --device cpu
property          60 -            build/quernprop --graphs 4000 --seed $TEST_SEED
property-interp   60 -            build/quernprop --device interp --graphs 4000 --seed $TEST_SEED
property-cpu     150 -            build/quernprop --device cpu --graphs 200 --seed $TEST_SEED
property-calls    40 -            build/quernprop --device interp --target sm_90+blas+dnn --graphs 1000 --seed $TEST_SEED
nets              60 -            build/quernnets --models short --random 20 --seed $TEST_SEED
nets-run          30 -            build/quernnets --run 60 --run-models short --seed $TEST_SEED
compare-self      20 -            $python tests/oracle/compare.py --selftest
compare-io-self   20 -            $python tests/oracle/compare_safetensors.py --selftest
plant             30 -            tests/driver/plant.sh build
plant-nvrtc       20 -            tests/driver/plant_nvrtc.sh build
plant-ulp         20 -            tests/driver/plant_ulp.sh build
program           20 -            build/quern --help
install           20 -            tests/install/run.sh
examples         120 -            tools/examples.sh build
kill             100 -            tests/kill/run.sh build 5
docs              40 -            $python tools/docs.py
opencl           400 -            tools/opencl.sh build
nvrtc            500 -            tools/nvrtc.sh build
neon-build       150 -            tools/neon.sh build
neon             250 neon-build   tools/neon.sh run
asan-build       400 -            tools/build.sh asan
asan-unit-1      700 asan-build   tools/sanitize.sh asan unit 1
asan-unit-2      700 asan-build   tools/sanitize.sh asan unit 2
asan-driver      400 asan-build   tools/sanitize.sh asan driver
fuzz             250 asan-build   tools/fuzz.sh --built 10
"""

# What takes too long for every change: all networks for all GPU targets, many random ones, a hundred kills, all cases everywhere.
NIGHTLY = """
build              0 -            tools/build.sh release
nets-models        0 -            build/quernnets --models all
nets-random        0 -            build/quernnets --random 400 --seed $seed
nets-run           0 -            build/quernnets --run 2000 --seed $seed
nets-run-models    0 -            build/quernnets --run-models all
nets-run-cpu       0 -            build/quernnets --run 50 --seed $seed --device cpu
kill               0 -            tests/kill/run.sh build 100 $seed
property           0 -            build/quernprop --graphs 100000 --seed $seed
property-interp    0 -            build/quernprop --device interp --graphs 100000 --seed $seed
property-cpu       0 -            build/quernprop --device cpu --graphs 1000 --seed $seed
property-calls     0 -            build/quernprop --device interp --target sm_90+blas+dnn --graphs 5000 --seed $seed
opencl             0 -            tools/opencl.sh build
nvrtc              0 -            tools/nvrtc.sh build
neon-build         0 -            tools/neon.sh build
neon               0 neon-build   tools/neon.sh run
asan-build         0 -            tools/build.sh asan
asan-unit-1        0 asan-build   tools/sanitize.sh asan unit 1
asan-unit-2        0 asan-build   tools/sanitize.sh asan unit 2
asan-driver        0 asan-build   tools/sanitize.sh asan driver
fuzz               0 asan-build   tools/fuzz.sh --built 60
"""

TABLES = {"quick": QUICK, "all": ALL, "nightly": NIGHTLY}


class Step:
    """A row of a table, and what became of it."""

    def __init__(self, line):
        self.name, budget, needs, self.command = line.split(None, 3)
        self.budget = float(budget)  # 0: any
        self.needs = [] if needs == "-" else needs.split(",")
        self.started = self.ended = False
        self.length = 0.0  # of the longest chain of steps that begins with this one
        self.status, self.cpu, self.clock = 0, 0.0, 0.0
        self.passed = self.failed = self.skipped = 0
        self.outgrew = False


def read_table(text, wanted=()):
    """The steps of a table in its order; those that are wanted, with what they need, or all."""
    steps = {step.name: step for step in map(Step, text.strip().splitlines())}
    unknown = [name for step in steps.values() for name in step.needs if name not in steps]
    unknown += [name for name in wanted if name not in steps]
    if unknown:
        raise SystemExit("tools/test.py: there is no step %s" % ", ".join(unknown))
    keep, add = set(), list(wanted) or list(steps)
    while add:
        name = add.pop()
        keep.add(name)
        add += [need for need in steps[name].needs if need not in keep]
    kept = [step for step in steps.values() if step.name in keep]

    def chain(step):
        later = [chain(other) for other in kept if step.name in other.needs]
        step.length = max(step.budget, 1) + max(later, default=0)
        return step.length

    for step in kept:
        chain(step)
    return kept


SUMS = [(re.compile(r"\[  PASSED  \] (\d+) test"), 0), (re.compile(r"\[  FAILED  \] (\d+) test"), 1),
        (re.compile(r"\[  SKIPPED \] (\d+) test"), 2)]
CLOSING = re.compile(r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\.?$")


def count(lines):
    """How many tests passed, failed and were skipped by a log."""
    sums = [0, 0, 0]
    for line in lines:
        line = re.sub(r"^\d+: ", "", line)
        closing = CLOSING.match(line)
        for pattern, which in SUMS:
            found = pattern.match(line)
            sums[which] += int(found.group(1)) if found else 0
        for which in range(3 if closing else 0):
            sums[which] += int(closing.group(which + 1) or 0)
    return sums


class Run:
    """Steps on their way through the lanes."""

    def __init__(self, steps, folder, env, factor=1.0, lanes=LANES):
        self.steps, self.folder, self.factor, self.lanes = steps, folder, factor, lanes
        self.env = dict(env)
        self.turn = threading.Condition()
        self.processes = set()
        os.makedirs(folder, exist_ok=True)

    def log(self, step):
        return os.path.join(self.folder, step.name + ".log")

    def perform(self, step, env):
        start = time.time()
        with open(self.log(step), "wb") as log:
            process = subprocess.Popen(["sh", "-c", step.command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                       start_new_session=True)
            self.processes.add(process.pid)
            _, status, usage = os.wait4(process.pid, 0)  # of the step and of all that it waited for
            process.returncode = step.status = os.waitstatus_to_exitcode(status)
            self.processes.discard(process.pid)
        step.cpu, step.clock = usage.ru_utime + usage.ru_stime, time.time() - start
        with open(self.log(step), errors="replace") as log:
            step.passed, step.failed, step.skipped = count(log)
        if step.status != 0 and step.failed == 0:
            step.failed = 1
        if step.passed + step.failed + step.skipped == 0:
            step.passed = 1
        step.outgrew = 0 < step.budget * self.factor < step.cpu
        self.show(step)

    def show(self, step):
        if step.status == 0 and step.failed == 0:
            print("  ok      %-16s %6d passed %6.0f s, CPU %.0f s" % (step.name, step.passed, step.clock, step.cpu), flush=True)
        else:
            print("  FAILED  %-16s %6d passed, %d failed, exit %d: %s" %
                  (step.name, step.passed, step.failed, step.status, step.command))
            with open(self.log(step), errors="replace") as log:
                lines = log.read().splitlines()
            marks = re.compile(r"\[  ERROR|\[   LINE|\[  FAILED|\*\*\*|error:|Sanitizer|^FAIL")
            for line in [line for line in lines if marks.search(line)][:40] + ["..."] + lines[-40:]:
                print("  | " + line)
        if step.outgrew:
            print("  FAILED  %-16s took %.0f s of CPU time, its budget is %.0f s (HINT: head of tools/test.py)" %
                  (step.name, step.cpu, step.budget * self.factor), flush=True)

    def take(self):
        """The next step of a lane; None when none is left."""
        with self.turn:
            while True:
                left = [step for step in self.steps if not step.started]
                if not left:
                    return None
                ended = {step.name for step in self.steps if step.ended}
                ready = [step for step in left if ended.issuperset(step.needs)]
                if ready:
                    step = max(ready, key=lambda step: step.length)
                    step.started = True
                    return step
                self.turn.wait()

    def lane(self):
        # A lane is one CPU: builds and ctest do one thing at a time in it.
        env = dict(self.env, CMAKE_BUILD_PARALLEL_LEVEL="1", CTEST_PARALLEL_LEVEL="1")
        while True:
            step = self.take()
            if step is None:
                return
            self.perform(step, env)
            with self.turn:
                step.ended = True
                self.turn.notify_all()

    def run(self):
        try:
            if self.steps[0].name == "build":
                self.steps[0].started = True
                self.perform(self.steps[0], self.env)
                self.steps[0].ended = True
            threads = [threading.Thread(target=self.lane, daemon=True) for _ in range(self.lanes)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for pid in list(self.processes):
                os.killpg(pid, signal.SIGTERM)

    def close(self, clock):
        """Prints the table of seconds and the sum; whether all is well. What has not ended has failed."""
        for step in self.steps:
            step.failed += not step.ended
        print("\n  step             passed  failed        CPU  budget   clock")
        for step in sorted(self.steps, key=lambda step: -step.cpu):
            budget = "%6.0f s" % (step.budget * self.factor) if step.budget * self.factor else "      -"
            print("  %-16s %6d  %6d   %6.1f s %s %5.0f s" %
                  (step.name, step.passed, step.failed + step.outgrew, step.cpu, budget, step.clock))
        print("  %-16s %6s  %6s   %6.1f s %6s   %5.0f s" % ("all", "", "", sum(step.cpu for step in self.steps), "", clock))
        broken = [step.name for step in self.steps if step.failed or step.status or step.outgrew]
        if broken:
            print("failed steps: %s (whole output in %s/)" % (" ".join(broken), self.folder))
        passed, skipped = sum(step.passed for step in self.steps), sum(step.skipped for step in self.steps)
        failed = sum(step.failed + step.outgrew for step in self.steps)
        print("%d passed, %d failed%s" % (passed, failed, ", %d skipped" % skipped if skipped else ""))
        return failed == 0


def seed_of_commit():
    """Five digits of the commit's name, or 1 where there is no repository."""
    found = subprocess.run(["git", "-c", "safe.directory=*", "rev-parse", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return int(found.stdout[:8], 16) % 100000 if found.returncode == 0 else 1


def selftest():
    """Planted: a step that fails, one that outgrows its budget, one that comes before what it needs."""
    table = """
    build    0 -            echo build >>order
    late     5 early        echo late >>order; echo '1: [  PASSED  ] 3 test(s).'
    early    1 -            echo early >>order; echo '2 passed, 0 failed'
    long     9 -            echo long >>order
    wrong    1 -            echo '4 passed, 2 failed, 1 skipped'; false
    crashes  1 -            kill -9 $$
    outgrows 0.05 -         i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done
    lane     1 -            echo $CMAKE_BUILD_PARALLEL_LEVEL passed, 0 failed
    """
    start, results = os.getcwd(), []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for lanes in (1, 2):
            run = Run(read_table(table), "logs", os.environ, lanes=lanes)
            if os.path.exists("order"):
                os.remove("order")
            with open(os.devnull, "w") as nothing:
                sys.stdout, shown = nothing, sys.stdout
                try:
                    run.run()
                    good = run.close(0)
                finally:
                    sys.stdout = shown
            by = {step.name: step for step in run.steps}
            with open("order") as file:
                order = file.read().split()
            results += [not good, order[0] == "build", order.index("early") < order.index("late"),
                        lanes == 2 or order[1] == "long", by["late"].passed == 3, by["early"].passed == 2,
                        (by["wrong"].passed, by["wrong"].failed, by["wrong"].skipped) == (4, 2, 1),
                        by["crashes"].failed == 1 and by["crashes"].status == -9,
                        by["outgrows"].outgrew and not by["outgrows"].failed and not by["late"].outgrew,
                        by["lane"].passed == 1]
        os.chdir(start)
    results += [[step.name for step in read_table(table, ["late"])] == ["late", "early"]]
    for name, text in TABLES.items():
        results += [read_table(text)[0].name == "build", all((step.budget > 0) == (name != "nightly") for step in read_table(text))]
    for number, good in enumerate(results):
        if not good:
            print("selftest: case %d fails" % number)
    print("%d passed, %d failed" % (sum(results), len(results) - sum(results)))
    return 0 if all(results) else 1


def main(args):
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    if args == ["--selftest"]:
        return selftest()
    if not args or args[0] not in TABLES:
        sys.stderr.write(__doc__)
        return 2
    env = dict(os.environ, LC_ALL="C", QUERN_CACHE=os.path.abspath("build/cache"), python=PYTHON)
    seed = os.environ.get("SEED") or time.strftime("%Y%m%d") if args[0] == "nightly" else \
        os.environ.get("TEST_SEED") or str(seed_of_commit())
    if args[0] == "nightly":
        env.pop("TEST_SEED", None)  # without it devices run all cases
        env["seed"] = seed
        print("nightly: SEED=%s" % seed, flush=True)
    else:
        env["TEST_SEED"] = seed
        print("seed: TEST_SEED=%s" % seed, flush=True)
    if args[0] != "quick":
        shutil.rmtree("build/cache", ignore_errors=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # steps are ended on the way out
    signal.signal(signal.SIGINT, lambda number, frame: sys.exit(1))
    start = time.time()
    steps = read_table(TABLES[args[0]], args[1:])
    run = Run(steps, "build/logs", env, float(os.environ.get("TEST_BUDGET", "1")))
    good = False
    try:
        run.run()
    finally:  # a run that is ended from outside still shows where its time went
        good = run.close(time.time() - start)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
