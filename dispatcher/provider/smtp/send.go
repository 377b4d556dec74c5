package smtp

import (
	"context"
	"errors"
	"strconv"

	"github.com/softcrum/carril/dispatcher/provider"
)

// Send makes one attempt at one mail transaction. The error is always a
// *provider.Error; it carries no recipient, content or credential. The key is
// the rail's alone: SMTP has none, so a repeat after an uncertain attempt may
// reach its recipient twice.
func (a *Adapter) Send(ctx context.Context, r provider.Request) (provider.Result, error) {
	none := provider.Result{Limits: provider.NoLimits()}
	e, perr := thaw(r.Frozen)
	if perr != nil {
		return none, perr
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	if err := a.pool.enter(ctx); err != nil {
		return none, a.failure(ctx, stageConnect, err, e)
	}
	defer a.pool.leave()
	s, perr := a.session(ctx, e)
	if perr != nil {
		return none, perr
	}
	if perr := a.transact(ctx, s, e); perr != nil {
		return none, perr
	}
	return provider.Result{Items: []provider.Item{{ProviderMessageID: e.id()}}, Limits: provider.NoLimits()}, nil
}

// session gives a connection that answered a moment ago: one that was kept and
// still lives, else a new one.
func (a *Adapter) session(ctx context.Context, e envelope) (*session, *provider.Error) {
	for s := a.pool.take(); s != nil; s = a.pool.take() {
		if s.alive(ctx) {
			return s, nil
		}
		s.close()
	}
	return a.open(ctx, e)
}

// transact hands one message over, and the session back where it can be used
// again: where the relay's last word was a reply that it understood.
func (a *Adapter) transact(ctx context.Context, s *session, e envelope) *provider.Error {
	s.sent++
	release := s.watch(ctx)
	st, err := s.deliver(e)
	clean := release()
	if err == nil {
		if clean {
			a.pool.put(s)
		} else {
			s.close() // it was taken at the very moment when we stopped waiting
		}
		return nil
	}
	if code := replyCode(err); clean && code != 0 && code != replyClosing {
		a.pool.put(s)
	} else {
		s.close()
	}
	return a.failure(ctx, st, err, e)
}

// deliver runs the transaction, and names the stage where it ended. Everything
// but the final dot is out of our buffers before the dot goes in, so that only
// the dot's own way is uncertain.
func (s *session) deliver(e envelope) (stage, error) {
	if st, err := s.fits(e); err != nil {
		return st, err
	}
	s.client.SkipSMTPUTF8(!e.utf8)
	if err := s.client.Mail(e.from); err != nil {
		return stageMail, err
	}
	if err := s.client.Rcpt(e.to); err != nil {
		return stageRcpt, err
	}
	w, err := s.client.Data()
	if err != nil {
		return stageData, err
	}
	if _, err := w.Write(e.message); err != nil {
		return stageBody, err
	}
	if err := s.client.Text.W.Flush(); err != nil {
		return stageBody, err
	}
	return stageDot, w.Close()
}

var (
	errTooLarge = errors.New("the message is larger than the relay announces to take")
	errNoUTF8   = errors.New("the relay takes no addresses beyond ASCII")
)

// fits asks nothing: it reads what the relay said of itself.
func (s *session) fits(e envelope) (stage, error) {
	if _, size := s.client.Extension("SIZE"); size != "" {
		if most, err := strconv.Atoi(size); err == nil && most > 0 && len(e.message) > most {
			return stageMail, errTooLarge
		}
	}
	if ok, _ := s.client.Extension("SMTPUTF8"); e.utf8 && !ok {
		return stageMail, errNoUTF8
	}
	return "", nil
}
