package responses

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

func TestAPageOfItemsBeginsAfterAnItemAndHasTheLastOneFirst(t *testing.T) {
	items := []json.RawMessage{[]byte(`{"id":"a"}`), []byte(`{"id":"b"}`), []byte(`{"id":"c"}`)}
	for _, c := range []struct{ limit, order, after, want string }{
		{"", "", "", `{"object":"list","data":[{"id":"c"},{"id":"b"},{"id":"a"}],"first_id":"c","last_id":"a","has_more":false}`},
		{"1", "desc", "c", `{"object":"list","data":[{"id":"b"}],"first_id":"b","last_id":"b","has_more":true}`},
		{"100", "asc", "b", `{"object":"list","data":[{"id":"c"}],"first_id":"c","last_id":"c","has_more":false}`},
		{"2", "asc", "c", `{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}`},
	} {
		page, err := DecodePage(c.limit, c.order, c.after)
		require.NoError(t, err)
		body, err := page.Encode(items)
		require.NoError(t, err)
		require.JSONEq(t, c.want, string(body))
		require.Equal(t, `{"id":"a"}`, string(items[0]), "the caller's list stays in its order")
	}
	for param, p := range map[string][2]string{"limit": {"101", ""}, "order": {"", "up"}} {
		_, err := DecodePage(p[0], p[1], "")
		require.Equal(t, param, api.AsError(err).Param)
	}
	page, err := DecodePage("", "", "d")
	require.NoError(t, err)
	_, err = page.Encode(items)
	require.Equal(t, "after", api.AsError(err).Param)
}
