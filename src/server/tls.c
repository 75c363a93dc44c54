#include "server/tls.h"

#include <gnutls/gnutls.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define PEM_MAX (1u << 20)

static enum nyb_code check_pair(const struct tls *t, const char *cert_file, const char *key_file,
                                struct nyb_err *err)
{
    gnutls_certificate_credentials_t both;
    int result = gnutls_certificate_allocate_credentials(&both);
    if (result < 0)
        return err_set(err, NYB_E_IO, "TLS: %s", gnutls_strerror(result));
    const gnutls_datum_t cert = {(unsigned char *)t->cert, (unsigned)strlen(t->cert)},
                         key = {(unsigned char *)t->key, (unsigned)strlen(t->key)};
    result = gnutls_certificate_set_x509_key_mem(both, &cert, &key, GNUTLS_X509_FMT_PEM);
    gnutls_certificate_free_credentials(both);
    return result >= 0 ? NYB_OK
                       : err_at(err, NYB_E_ARG, cert_file, -1, "is no certificate of the key in %s: %s",
                                key_file, gnutls_strerror(result));
}

enum nyb_code tls_open(struct tls *t, const char *cert_file, const char *key_file, struct nyb_err *err)
{
    size_t n;
    *t = (struct tls){0};
    if (!cert_file && !key_file)
        return NYB_OK;
    if (!cert_file || !key_file)
        return err_at(err, NYB_E_ARG, cert_file ? "tls-key" : "tls-cert", -1,
                      "--tls-cert and --tls-key belong together");
    TRY(file_read_all(cert_file, PEM_MAX, &t->cert, &n, err));
    TRY(file_read_all(key_file, PEM_MAX, &t->key, &n, err));
    return check_pair(t, cert_file, key_file, err);
}

void tls_close(struct tls *t)
{
    if (t->key)
        explicit_bzero(t->key, strlen(t->key));
    free(t->cert);
    free(t->key);
    *t = (struct tls){0};
}
