/* The certificate and the key of HTTPS. The loop's. */
#ifndef NYB_SERVER_TLS_H
#define NYB_SERVER_TLS_H

#include "base/err.h"

struct tls_pair; /* a certificate with its key, as long as anybody uses it */

struct tls {
    char *cert, *key;      /* PEM as it was at the start; NULL: plain HTTP */
    struct tls_pair *pair; /* for connections that begin now               */
};

/* Read both files and see that they belong together. Both paths NULL: plain HTTP; one of them: an error. */
enum nyb_code tls_open(struct tls *t, const char *cert_file, const char *key_file,
                       struct nyb_err *err) NYB_MUST_CHECK;
/* Read them again, for connections that begin from now on. After an error nothing has changed. */
enum nyb_code tls_renew(struct tls *t, const char *cert_file, const char *key_file,
                        struct nyb_err *err) NYB_MUST_CHECK;
/* Also after an error. The key's bytes are wiped. */
void tls_close(struct tls *t);

/* The pair for a connection whose handshake has not begun; session: GnuTLS's. To be released with it. */
struct tls_pair *tls_use(struct tls *t, void *session);
void tls_release(struct tls_pair *p); /* NULL is fine */

#endif
