package rail

import (
	"errors"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/sends"
)

// decide says what an attempt means for its job.
//
// A generation is known not taken only if every attempt under it was refused or
// never left: after one of unknown outcome, the answer to a later one settles
// nothing unless it is an answer under the same key that the request was taken.
func (w *Worker) decide(it *item, c sends.Claimed, res provider.Result, err error) sends.Step {
	if err == nil {
		return w.taken(it, c, res)
	}
	var pe *provider.Error
	if !errors.As(err, &pe) {
		pe = &provider.Error{Class: provider.ClassUncertain, Code: "no_answer"}
	}
	step := sends.Step{State: sends.StateInTopic, Reason: pe.Code, Settled: "refused", Unspent: pe.Class != provider.ClassUncertain}
	if c.Resend { // an earlier attempt under this key may have been taken
		step.Settled, step.Uncertain = "", true
	}
	switch pe.Class {
	case provider.ClassThrottled:
		step.Reason = "throttled"
		return step
	case provider.ClassConfiguration:
		step.Reason = "configuration"
		return step
	case provider.ClassSender:
		step.State, step.Reason, step.PauseSend = sends.StateHeld, "sender_paused", pe.Code
		return step
	case provider.ClassPermanent:
		return w.permanent(it, c, pe, step)
	case provider.ClassUncertain:
		step.Settled, step.Uncertain = "", true
	}
	return w.again(c, step)
}

// permanent ends a job whose request was refused for good. A batch that was
// refused for what is likely one message's fault is halved until that one
// stands alone. After an attempt of unknown outcome the refusal settles
// nothing: a person must look.
func (w *Worker) permanent(it *item, c sends.Claimed, pe *provider.Error, step sends.Step) sends.Step {
	switch {
	case c.Resend:
		step.State, step.DeadClass = sends.StateNeedsReview, "outcome_unknown"
		return step
	case pe.Divisible && len(c.Messages) > 1:
		it.limit = len(c.Messages) / 2
		return step
	}
	for _, m := range c.Messages {
		step.Outcomes = append(step.Outcomes, sends.Outcome{SendID: m.SendID, Failed: pe.Code})
	}
	step.State = c.After(step.Outcomes)
	return step
}

// taken settles a request that the provider took, whole or in part. A message
// whose own failure is not for good goes out again in another generation,
// without the others.
func (w *Worker) taken(it *item, c sends.Claimed, res provider.Result) sends.Step {
	step := sends.Step{Settled: "taken"}
	left := 0
	for i, m := range c.Messages {
		if i >= len(res.Items) {
			left++
			continue
		}
		switch item := res.Items[i]; {
		case item.Err == nil:
			step.Outcomes = append(step.Outcomes, sends.Outcome{SendID: m.SendID, Taken: item.ProviderMessageID})
		case item.Err.Class == provider.ClassPermanent:
			step.Outcomes = append(step.Outcomes, sends.Outcome{SendID: m.SendID, Failed: item.Err.Code})
		default:
			left++
			step.Reason = item.Err.Code
		}
	}
	step.State = c.After(step.Outcomes)
	if left > 0 {
		return w.again(c, step)
	}
	if step.State == sends.StateInTopic && it.limit > 0 {
		it.limit *= 2 // the bad one may be behind us
		if it.most > 0 {
			it.limit = min(it.limit, it.most)
		}
	}
	return step
}

// again counts an attempt and says when the next may be: after an exponential
// wait with full jitter, in memory where it is short and parked where it is
// not, or never.
func (w *Worker) again(c sends.Claimed, step sends.Step) sends.Step {
	step.Counted = true
	tried := c.Attempts() + 1
	if tried >= w.cfg.Tries || c.Spent() >= w.cfg.TryFor {
		if step.Uncertain {
			step.State, step.DeadClass = sends.StateNeedsReview, "outcome_unknown"
			return step
		}
		step.State, step.DeadClass = sends.StateDead, "exhausted"
		done := map[[16]byte]bool{}
		for _, o := range step.Outcomes {
			done[o.SendID] = true
		}
		for _, m := range c.Messages {
			if !done[m.SendID] {
				step.Outcomes = append(step.Outcomes, sends.Outcome{SendID: m.SendID, GaveUp: step.Reason})
			}
		}
		return step
	}
	step.State = sends.StateInTopic
	// Times four each time: the first retry of a code comes within a second, and
	// the eighth try is far enough away to outlive an outage of ten minutes (F30).
	step.Delay = fullJitter(min(w.cfg.BackoffMax, w.cfg.Backoff<<min(2*(tried-1), 20)))
	if step.Delay > w.cfg.Budget/10 {
		step.State = sends.StateParked
	}
	return step
}
