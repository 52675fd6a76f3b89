#!/bin/sh
# Kills a gateway that doesn't end when it is told to: `gateway/server/end_guard.py` says why it needs this.
#
#     sh end_guard.sh PID SECONDS DOUBLED_SECONDS LAST_SECONDS
#
# Standard input is a pipe into which the system writes the number of each signal that the gateway gets, as a byte. The
# gateway is killed SECONDS after the first that asks it to end, or LAST_SECONDS after the second; one that comes within
# DOUBLED_SECONDS of the first is the same one. Leads a session of its own, and ends with the gateway.
set -u
trap '' TERM INT HUP # also of dd and sleep: a service manager tells every process
gateway=$1 seconds=$2 doubled=$3 last=$4
interrupt=$(printf '\002') terminate=$(printf '\017')
exec 3<&0

# Waits for a signal that asks for the end. Fails if the gateway has ended.
asked() {
    while byte=$(dd bs=1 count=1 2>/dev/null) && [ -n "$byte" ]; do
        case $byte in "$interrupt" | "$terminate") return 0 ;; esac
    done
    return 1
}

kill_after() {
    sleep "$1"
    echo "ctxgate: killed, since it didn't end when it was told to" >&2
    kill -9 "$gateway"
}

asked || exit 0
kill_after "$seconds" &
dd of=/dev/null <&3 2>/dev/null &
sleep "$doubled"
kill -9 $! 2>/dev/null
asked && kill_after "$last"
kill -9 "-$$" # with what still sleeps
