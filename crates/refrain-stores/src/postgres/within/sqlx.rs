//! Transactions of sqlx. Values are passed in the binary wire format.
//!
//! ```no_run
//! # async fn example(
//! #     store: &refrain_stores::postgres::Postgres, pool: &sqlx::PgPool, intent: &refrain::Intent,
//! # ) -> Result<refrain::Outcome, Box<dyn std::error::Error>> {
//! use refrain::{Outcome, Verdict};
//!
//! let mut transaction = pool.begin().await?;
//! let outcome = match store.claim_in(&mut transaction, intent).await? {
//!     Verdict::Granted(claimed) => {
//!         let charge = sqlx::query("UPDATE accounts SET balance = balance - 20 WHERE id = 7");
//!         charge.execute(&mut *transaction).await?;
//!         claimed.complete_in(&mut transaction, Outcome::new(200, "paid")).await?
//!     }
//!     Verdict::Replay(outcome) => outcome,
//!     other => return Err(format!("not now: {other:?}").into()),
//! };
//! transaction.commit().await?;
//! # Ok(outcome)
//! # }
//! ```

use ::sqlx::{
    AssertSqlSafe, Error, Postgres, Row as _, Transaction, ValueRef as _,
    encode::{Encode, IsNull},
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgArguments, PgDatabaseError, PgRow, PgTypeInfo, types::Oid},
    query::Query,
};
use bytes::BytesMut;
use tokio_postgres::{
    error::SqlState,
    types::{FromSql, Type},
};

use super::{Cells, Parameter, Said, Within};

impl Within for &mut Transaction<'_, Postgres> {
    type Row = PgRow;

    async fn query(
        &mut self,
        text: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<PgRow>, Said> {
        Ok(query(text, parameters)?.fetch_all(&mut ***self).await?)
    }

    async fn execute(&mut self, text: &str, parameters: &[Parameter<'_>]) -> Result<u64, Said> {
        let done = query(text, parameters)?.execute(&mut ***self).await?;
        Ok(done.rows_affected())
    }
}

fn query(
    text: &str,
    parameters: &[Parameter<'_>],
) -> Result<Query<'static, Postgres, PgArguments>, Said> {
    let mut query = ::sqlx::query(AssertSqlSafe(text)).persistent(false);
    for (value, ty) in parameters {
        let mut bytes = BytesMut::new();
        let written = value.to_sql_checked(ty, &mut bytes);
        let written = written.map_err(|error| Said {
            code: None,
            words: error.to_string(),
        })?;
        let is_null = matches!(written, tokio_postgres::types::IsNull::Yes);
        query = query.bind(BinaryValue {
            bytes: (!is_null).then_some(bytes),
            ty: PgTypeInfo::with_oid(Oid(ty.oid())),
        });
    }
    Ok(query)
}

/// Value in the binary wire format.
struct BinaryValue {
    bytes: Option<BytesMut>,
    ty: PgTypeInfo,
}

impl Encode<'_, Postgres> for BinaryValue {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let Some(bytes) = &self.bytes else {
            return Ok(IsNull::Yes);
        };
        buffer.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(self.ty.clone())
    }
}

impl ::sqlx::Type<Postgres> for BinaryValue {
    /// Placeholder: `produces` returns the type of each value.
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(Type::UNKNOWN.oid()))
    }
}

impl Cells for PgRow {
    fn cell<'a, T: FromSql<'a>>(&'a self, place: usize) -> Result<T, String> {
        let value = self.try_get_raw(place).map_err(|error| error.to_string())?;
        let oid = value.type_info().oid().map(|oid| oid.0);
        let ty = oid.and_then(Type::from_oid).filter(T::accepts);
        let ty = ty.ok_or_else(|| format!("column {place} has an unexpected type"))?;
        let bytes = match value.is_null() {
            true => None,
            false => Some(value.as_bytes().map_err(|error| error.to_string())?),
        };
        T::from_sql_nullable(&ty, bytes).map_err(|error| error.to_string())
    }
}

impl From<Error> for Said {
    fn from(error: Error) -> Self {
        let Some(said) = error
            .as_database_error()
            .and_then(|said| said.try_downcast_ref::<PgDatabaseError>())
        else {
            return Self {
                code: None,
                words: error.to_string(),
            };
        };
        let mut words = format!("{} ({})", said.message(), said.code());
        for more in [said.detail(), said.hint()].into_iter().flatten() {
            words = format!("{words}; {more}");
        }
        Self {
            code: Some(SqlState::from_code(said.code())),
            words,
        }
    }
}
