# Sourced by tests: hosts made of network namespaces on one line (netline.c).
#
#     hosts_up NETLINE COUNT DELAY_US RATE_MBIT      nyb0, nyb1, ... with addresses 198.18.7.1, .2, ...
#     hosts_mpirun COUNT PROGRAM ARGUMENTS...        one rank a host, started from nyb0
#     hosts_cut, hosts_join                          all lines
#     hosts_shape EXPERTS FOLDER                     moe-shape with so many experts a token
#     hosts_down                                     also at exit
# Exits with 77 (skipped) where the machine does not let us: not root, no namespaces, no TUN, no Open MPI.

HOSTS_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

hosts_skip() {
    echo "skipped: $1"
    exit 77
}

hosts_check() {
    [ "$(id -u)" -eq 0 ] || hosts_skip "hosts need root"
    command -v ip >/dev/null || hosts_skip "hosts need iproute2"
    command -v mpirun.openmpi >/dev/null || hosts_skip "hosts need Open MPI"
    [ -c /dev/net/tun ] || hosts_skip "hosts need /dev/net/tun"
    ip netns add nybcheck 2>/dev/null || hosts_skip "this machine allows no network namespaces"
    ip netns del nybcheck
}

hosts_down() {
    [ -n "${HOSTS_LINE:-}" ] && kill "$HOSTS_LINE" 2>/dev/null
    for ((i = 0; i < ${HOSTS_COUNT:-0}; i++)); do
        ip netns pids "nyb$i" 2>/dev/null | xargs -r kill -9 2>/dev/null
        ip netns del "nyb$i" 2>/dev/null
    done
    HOSTS_LINE=
    HOSTS_COUNT=0
}

hosts_up() {
    local netline=$1 delay=$3 rate=$4 spaces=() ready
    HOSTS_COUNT=$2
    trap hosts_down EXIT
    for ((i = 0; i < HOSTS_COUNT; i++)); do
        ip netns del "nyb$i" 2>/dev/null || true
        ip netns add "nyb$i"
        spaces+=("nyb$i")
    done
    exec {ready}< <(exec "$netline" "$delay" "$rate" "${spaces[@]}")
    HOSTS_LINE=$!
    read -r -t 10 -u "$ready" || { echo "netline did not start"; exit 1; }
    for ((i = 0; i < HOSTS_COUNT; i++)); do
        ip -n "nyb$i" link set lo up
        ip -n "nyb$i" addr add "198.18.7.$((i + 1))/24" dev line0
        ip -n "nyb$i" link set line0 up mtu "${HOSTS_MTU:-1500}"
    done
}

hosts_shape() {
    mkdir -p "$2"
    sed "s/\"num_experts_per_tok\": [0-9]*/\"num_experts_per_tok\": $1/" "$HOSTS_DIR/moe-shape/config.json" >"$2/config.json"
}

hosts_cut() { kill -USR1 "$HOSTS_LINE"; }
hosts_join() { kill -USR2 "$HOSTS_LINE"; }

# Without --bind-to none every rank would be pinned to core 0; without btl tcp alone Open MPI finds that the hosts
# share memory; without plm rsh an image that says OMPI_MCA_plm=isolated, as some do, starts all ranks on the first host.
# The keep-alives end mpirun when a host is cut off for some 9 s (HOSTS_PROBES 4; 2: 5 s): it would wait for a quarter of an hour.
hosts_mpirun() {
    local count=$1 hosts=""
    shift
    for ((i = 0; i < count; i++)); do
        hosts+="${hosts:+,}198.18.7.$((i + 1)):1"
    done
    "$HOSTS_DIR/agent.sh" 198.18.7.1 mpirun.openmpi --allow-run-as-root --bind-to none --mca plm rsh \
        --mca mpi_yield_when_idle 1 --mca plm_rsh_agent "$HOSTS_DIR/agent.sh" --mca pml ob1 --mca btl self,tcp \
        --mca btl_tcp_if_include line0 --mca oob_tcp_if_include line0 \
        --mca oob_tcp_keepalive_time 1 --mca oob_tcp_keepalive_intvl 2 --mca oob_tcp_keepalive_probes "${HOSTS_PROBES:-4}" --host "$hosts" -np "$count" "$@"
}
