/* systemd's readiness protocol: one datagram to the socket that NOTIFY_SOCKET names. */
#ifndef NYB_SERVER_NOTIFY_H
#define NYB_SERVER_NOTIFY_H

/* "READY=1", "STOPPING=1". Nothing happens where no service manager asked. */
void notify_send(const char *state);

#endif
