/* netline: a network of a few hosts with a given delay and rate, made of network namespaces.
 *
 *     netline DELAY_US RATE_MBIT NAMESPACE...
 *
 * In each namespace it makes the device line0 (a TUN: it carries IP packets). A packet to 198.18.7.(i + 1)
 * goes to namespace i. It leaves its host when the packets before it have left at RATE_MBIT, and arrives
 * DELAY_US later; what does not fit into the queue is dropped, as a switch does. Prints "ready", then runs
 * until it is killed. SIGUSR1 cuts all lines (packets are lost), SIGUSR2 joins them again.
 *
 * As network cards do, it takes TCP's data in large pieces (segmentation offload) and hands them on so; on
 * the line they count as the packets that they stand for, each with its headers. Otherwise the processors,
 * which play the network here, would be busier with packets than the hosts with their work.
 *
 * The kernels of many machines come without netem; this needs only TUN devices and root. */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define HOSTS_MAX    8
#define QUEUE_MAX    4096 /* packets that are on their way from one host */
#define PACKET_MAX   (65536 + sizeof(struct virtio_net_hdr))
#define READ_BURST   64 /* packets of one host before the next has its turn */
#define HEADER_BYTES 20 /* of IPv4; the destination is its last word */

struct packet {
    uint64_t due_ns;
    int to;
    size_t bytes;
    uint8_t data[]; /* what the kernel says about it (struct virtio_net_hdr), then IP */
};

struct host {
    int tun;
    uint64_t free_ns; /* when its line has sent what it holds */
    struct packet *queue[QUEUE_MAX];
    unsigned head, tail;
};

static volatile sig_atomic_t cut;

static void on_signal(int number)
{
    cut = number == SIGUSR1;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "netline: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* A device belongs to the namespace that its maker is in. */
static int make_tun(const char *namespace)
{
    char path[256];
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    snprintf(path, sizeof(path), "/run/netns/%s", namespace);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET))
        die(path);
    close(ns);
    int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    strcpy(request.ifr_name, "line0");
    if (tun < 0 || ioctl(tun, TUNSETIFF, &request) || ioctl(tun, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4))
        die("/dev/net/tun");
    return tun;
}

/* -1: not an IPv4 packet to one of us. */
static int destination(const uint8_t *data, size_t bytes, int n_host)
{
    static const uint8_t net[3] = {198, 18, 7};
    if (bytes < HEADER_BYTES || data[0] >> 4 != 4 || memcmp(data + 16, net, sizeof(net)) != 0)
        return -1;
    int to = data[19] - 1;
    return to >= 0 && to < n_host ? to : -1;
}

/* Bytes that a piece takes on the line: each of its packets has the headers of IP and TCP. */
static size_t line_bytes(const struct virtio_net_hdr *about, const uint8_t *ip, size_t bytes)
{
    if (about->gso_type != VIRTIO_NET_HDR_GSO_TCPV4 || !about->gso_size)
        return bytes;
    size_t ip_header = 4u * (ip[0] & 15u);
    size_t headers = bytes > ip_header + 12 ? ip_header + 4u * (ip[ip_header + 12] >> 4) : bytes;
    if (bytes <= headers)
        return bytes;
    size_t payload = bytes - headers, packets = (payload + about->gso_size - 1) / about->gso_size;
    return payload + packets * headers;
}

/* Deliver what is due; when the next one is, or UINT64_MAX. */
static uint64_t deliver(struct host *host, int n_host, uint64_t now)
{
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < n_host; i++) {
        struct host *h = &host[i];
        for (; h->head != h->tail; h->head++) {
            struct packet *p = h->queue[h->head % QUEUE_MAX];
            if (p->due_ns > now) {
                next = p->due_ns < next ? p->due_ns : next;
                break;
            }
            if (!cut && write(host[p->to].tun, p->data, p->bytes) < 0 && errno != EAGAIN && errno != EIO)
                die("write");
            free(p);
        }
    }
    return next;
}

static void take(struct host *host, int from, int n_host, uint64_t delay_ns, double mbit)
{
    static uint8_t data[PACKET_MAX];
    struct virtio_net_hdr about;
    struct host *h = &host[from];
    for (int k = 0; k < READ_BURST; k++) {
        ssize_t n = read(h->tun, data, sizeof(data));
        if (n < (ssize_t)sizeof(about))
            return;
        memcpy(&about, data, sizeof(about));
        size_t ip_bytes = (size_t)n - sizeof(about);
        int to = destination(data + sizeof(about), ip_bytes, n_host);
        if (to < 0 || cut || h->tail - h->head == QUEUE_MAX)
            continue;
        struct packet *p = malloc(sizeof(*p) + (size_t)n);
        if (!p)
            die("malloc");
        uint64_t now = now_ns();
        h->free_ns = h->free_ns > now ? h->free_ns : now;
        if (mbit > 0)
            h->free_ns +=
                (uint64_t)((double)line_bytes(&about, data + sizeof(about), ip_bytes) * 8000.0 / mbit);
        *p = (struct packet){.due_ns = h->free_ns + delay_ns, .to = to, .bytes = (size_t)n};
        memcpy(p->data, data, (size_t)n);
        h->queue[h->tail++ % QUEUE_MAX] = p;
    }
}

static void wait_for(struct host *host, int n_host, uint64_t next)
{
    struct pollfd fd[HOSTS_MAX];
    uint64_t now = now_ns(), wait = next == UINT64_MAX ? 1000000000u : next > now ? next - now : 0;
    const struct timespec t = {.tv_sec = (time_t)(wait / 1000000000u), .tv_nsec = (long)(wait % 1000000000u)};
    for (int i = 0; i < n_host; i++)
        fd[i] = (struct pollfd){.fd = host[i].tun, .events = POLLIN};
    ppoll(fd, (nfds_t)n_host, &t, NULL);
}

int main(int argc, char **argv)
{
    static struct host host[HOSTS_MAX];
    int n_host = argc - 3;
    if (n_host < 2 || n_host > HOSTS_MAX) {
        fprintf(stderr, "usage: netline DELAY_US RATE_MBIT NAMESPACE... (2 to %d)\n", HOSTS_MAX);
        return 2;
    }
    uint64_t delay_ns = strtoull(argv[1], NULL, 10) * 1000;
    double mbit = atof(argv[2]);
    for (int i = 0; i < n_host; i++)
        host[i].tun = make_tun(argv[3 + i]);
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, on_signal);
    /* a network does not wait for its hosts' processors; best effort */
    (void)sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 10});
    prctl(PR_SET_TIMERSLACK, 1000); /* ns: delays are a few hundred microseconds */
    puts("ready");
    fflush(stdout);
    for (;;) {
        wait_for(host, n_host, deliver(host, n_host, now_ns()));
        for (int i = 0; i < n_host; i++)
            take(host, i, n_host, delay_ns, mbit);
    }
}
