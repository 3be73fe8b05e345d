#!/bin/bash
# syslog-ng's wildcard-file source: of a file that is renamed, as logrotate does, the lines that were written since its
# last look (follow-freq, a second by default) are never read, though syslog-ng has the file open and runs on. No kill, no
# full buffer, and no message about it.
# Expected: the renamed file is read to its end before its reader is given up. Seen with syslog-ng 3.38.1 (Debian 12).
# For users of nadi: docs/ingest.md says to rotate by name, a new file each day, and the tests do so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for package in syslog-ng-core=3.38.1-5+deb12u1 libivykis0 libnet1 libjson-c5 libwrap0 libglib2.0-0 libpcre3 libcap2; do
  apt-get download -qq "$package" > /dev/null 2>&1
done
for package in *.deb; do dpkg-deb -x "$package" root; done
libraries=$folder/root/usr/lib/x86_64-linux-gnu:$folder/root/lib/x86_64-linux-gnu:$folder/root/usr/lib/syslog-ng
mkdir logs
cat > syslog-ng.conf <<CONF
@version: 3.35
source s { wildcard-file(base-dir("$folder/logs") filename-pattern("*.log") follow-freq(1) flags(no-parse)); };
destination d { file("$folder/out" template("\$MESSAGE\n")); };
log { source(s); destination(d); flags(flow-control); };
CONF
LD_LIBRARY_PATH=$libraries root/usr/sbin/syslog-ng -F --no-caps --module-path "$folder/root/usr/lib/syslog-ng/3.38" \
  -f syslog-ng.conf -R persist -c ctl -p pid > log 2>&1 &
syslog_ng=$!
python3 - <<'PY'
import os, time

written = 0
for renames in (False, True):
    until = time.monotonic() + 4
    while time.monotonic() < until:
        with open("logs/a.log", "a") as file:
            for _ in range(10):
                file.write(f"line {written}\n")
                written += 1
        time.sleep(0.01)
    if not renames:
        os.rename("logs/a.log", "logs/a.log.1")
time.sleep(4)
with open("written", "w") as file:
    file.write(str(written))
PY
kill "$syslog_ng"
wait "$syslog_ng" || true
read -r written < written || true
stored=$(sort -u out | wc -l)
echo "of $written lines, $((written - stored)) were never read"
[ "$stored" -lt "$written" ]
